# SPDX-License-Identifier: Apache-2.0
"""Compares the saved queries with traffic that was counted by its clients and by the rules.

    python -m tests.support.questions_check DIRECTORY

tests/kernel/record_questions.py makes the capture. The last line is questions=... wrong=...; the exit status is 1 when an
answer is wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Rows = list[dict[str, Any]]
BY_RULE = "NETFILTER_DROP"
"""The kernel's reason for packets that a rule drops or rejects."""


def ask(capture: Path, query: str, *parameters: str) -> Rows:
    """The rows of a saved query."""
    words = [word for each in parameters for word in ("--param", each)]
    command = [sys.executable, "-m", "tracer", "query", str(capture), query, "-o", "json", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    rows: Rows = json.loads(done.stdout)["rows"]
    return rows


def top_dropped_services(rows: Rows, truth: dict[str, Any]) -> bool:
    counted: dict[tuple[str, str], int] = {(row["namespace"], row["service"]): row["dropped"] for row in rows}
    refused: int = truth["refused"]
    expected = refused + sum(truth["bursts"]) + truth["old"]
    return counted.get(("default", "lonely-web")) == refused and sum(counted.values()) == expected


def p99_of_the_syn_answer(rows: Rows, truth: dict[str, Any]) -> bool:
    """The figures of the one Service with answers; the refused SYNs have none."""
    (served,) = [row for row in rows if row["answered"]]
    refused = sum(row["syns"] for row in rows if row["service"] == "lonely-web")
    is_ordered = 0 < served["p50_ms"] <= served["p99_ms"] <= served["max_ms"] <= truth["slowest_ms"]
    same = (served["service"], served["syns"], served["answered"]) == ("http-proxy", truth["requests"], truth["requests"])
    # Of fewer than 100 answers the nearest rank of the 99th percentile is the slowest one.
    return same and is_ordered and served["p99_ms"] == served["max_ms"] and refused == truth["refused"]


def rule_that_drops_most(rows: Rows, truth: dict[str, Any]) -> bool:
    by_rule = {row["rule_text"]: row["packets"] for row in rows}
    dropping = [count for text, count in by_rule.items() if "--dport 9999" in text]
    first = rows[0]["packets"]
    return (
        dropping == [truth["rule"]] == [sum(truth["bursts"])] == [first] and sum(by_rule.values()) == first + truth["refused"]
    )


def connections_of_an_endpoint(rows: Rows, truth: dict[str, Any]) -> bool:
    found = {row["address"]: row["connections"] for row in rows if row["service"] == "http-proxy"}
    return found == truth["connections"] and not any(row["failed"] for row in rows if row["service"] == "http-proxy")


def drops_over_time(rows: Rows, truth: dict[str, Any]) -> bool:
    at = datetime.fromtimestamp(int(truth["second_burst"]), UTC).strftime("%Y-%m-%d %H:%M:%S")
    ruled = [row for row in rows if row["drop_reason"] == BY_RULE]
    late = sum(row["packets"] for row in ruled if row["interval_begin"] >= at)
    early = sum(row["packets"] for row in ruled if row["interval_begin"] < at)
    first, second = truth["bursts"]
    others = sum(row["packets"] for row in rows if row["drop_reason"] != BY_RULE)
    return (early, late, others) == (first + truth["refused"], second, truth["old"])


QUESTIONS: tuple[tuple[str, tuple[str, ...], Callable[[Rows, dict[str, Any]], bool]], ...] = (
    ("top-drops", (), top_dropped_services),
    ("slow-syns", (), p99_of_the_syn_answer),
    ("rules-that-drop", (), rule_that_drops_most),
    ("endpoints", (), connections_of_an_endpoint),
    ("drops-over-time", ("interval=second",), drops_over_time),
)


def main() -> int:
    directory = Path(sys.argv[1])
    truth = json.loads((directory / "questions.truth.json").read_text())
    wrong = 0
    for name, parameters, is_right in QUESTIONS:
        rows = ask(directory / "questions.k8st", name, *parameters)
        ok = is_right(rows, truth)
        wrong += not ok
        print(f"{name}: {'right' if ok else 'WRONG'}", *(map(json.dumps, rows)), sep="\n    ", flush=True)
    print(f"truth: {truth}\nquestions={len(QUESTIONS)} wrong={wrong}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
