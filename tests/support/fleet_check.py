# SPDX-License-Identifier: Apache-2.0
"""Brings captures of several nodes to an S3 bucket, reconstructs a finding from it alone, and compares three engines on it.

    python -m tests.support.fleet_check

The last line is nodes=... rows=... engines=... differences=...; the exit status is 1 when something differs.
"""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tracer.analysis import queries
from tracer.pipeline.shutdown import StopRequest
from tracer.store import engines
from tracer.store.bucket import Bucket
from tracer.store.selected_files import StoreSelection, select

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = {"worker-1": "B", "worker-2": "H", "worker-3": "I", "worker-4": "J"}
"""Captures of tests/data/real, by the name of the node that each one gets."""
PLACES = 9
"""Decimal places to which numbers are compared."""
Answers = dict[str, tuple[tuple[str, ...], list[tuple[object, ...]]]]


def answers_of(bucket: Bucket, engine: str, scratch: Path, names: tuple[str, ...] = ()) -> Answers:
    """Columns and rows of saved queries, by name. names: of the queries; () = all."""
    selection = StoreSelection()
    found: Answers = {}
    with engines.find(engine)(bucket, select(bucket, selection), selection, scratch, StopRequest()) as ask:
        for name in names or queries.names():
            result = ask(queries.sql_of(name))
            rows: list[tuple[object, ...]] = [tuple(map(_rounded, row)) for row in result.rows]
            found[name] = result.columns, rows
    return found


def _rounded(value: object) -> object:
    return round(value, PLACES) if isinstance(value, float) else value


def tracer(*args: str) -> str:
    """The output of a command of k8snet-trace. Its own scratch directory is the only other thing that it sees."""
    done = subprocess.run([sys.executable, "-m", "tracer", *args], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"k8snet-trace {' '.join(args)}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def main() -> int:
    from tests.support import faulty_s3

    with faulty_s3.running() as s3, tempfile.TemporaryDirectory(prefix="fleet-") as scratch:
        for node, name in CAPTURES.items():
            capture = Path(scratch) / f"{name}.k8st"
            capture.write_bytes(lzma.decompress((ROOT / f"tests/data/real/{name}.k8st.xz").read_bytes()))
            print(tracer("store", str(capture), s3.url, "--node", node).strip(), flush=True)
            capture.unlink()
        problems = recollection_problems(s3.url)
        bucket = Bucket(s3.url)
        files = select(bucket, StoreSelection())
        rows = stored_rows(bucket)
        answers, failed = {}, 0
        for engine in engines.names():
            began = time.monotonic()
            answers[engine] = answers_of(bucket, engine, Path(scratch))
            print(f"{engine}: {len(answers[engine])} saved queries in {time.monotonic() - began:.1f} s", flush=True)
        for name in queries.names():
            differing = [engine for engine in engines.names() if answers[engine][name] != answers[engines.DEFAULT][name]]
            failed += len(differing)
            for engine in differing:
                print(f"{name}: {engine} differs from {engines.DEFAULT}")
        print(*problems, sep="\n", end="\n" if problems else "")
        differences = failed + len(problems)
        print(f"nodes={len(files.nodes)} rows={rows} engines={len(answers)} differences={differences}")
        return int(bool(differences) or len(files.nodes) != len(CAPTURES))


def stored_rows(bucket: Bucket) -> int:
    """The number of rows of all tables."""
    from tracer.store import arrow_dataset

    files = select(bucket, StoreSelection())
    return sum(arrow_dataset.make(bucket, files, table).count_rows() for table, found in files.tables.items() if found)


def recollection_problems(url: str) -> list[str]:
    """What is missing in a finding that is reconstructed from the bucket alone: path, rule, owner, rules in force."""
    text = tracer("recall", url, "--finding", "syn_dropped", "--node", "worker-1", "--rules")
    print(*text.splitlines()[:20], "  ...", sep="\n", flush=True)
    wanted = {
        "the finding": "FINDING syn_dropped on worker-1",
        "the path": "KUBE-NODEPORTS 4 > KUBE-SVC-EZAGH2353YXQ62K4 1 > KUBE-SEP-4TZMI7XRFNSKSEHE 2",
        "the rule": '-p tcp -m comment --comment "shop/checkout:tls" -m tcp -j DNAT --to-destination 10.60.7.6:8443',
        "the owner": "Service shop/checkout:tls, NodePort 31222 -> pod shop/checkout-0",
        "the rules in force": "rules then in force: ip nat in node, 145 rules",
        "the text of these rules": "  -A KUBE-SEP-4TZMI7XRFNSKSEHE -p tcp",
    }
    joined = " ".join(text.split())
    return [f"{what} is missing in the finding" for what, words in wanted.items() if " ".join(words.split()) not in joined]


if __name__ == "__main__":
    os.environ.setdefault("TZ", "UTC")
    sys.exit(main())
