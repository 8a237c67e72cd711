# SPDX-License-Identifier: Apache-2.0
"""Tables of statistics on a terminal: words and numbers stay whole, times have units, and JSON keeps the values."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tracer.analysis import result_table
from tracer.analysis.result_table import ResultTable

RULE = '-p tcp -m comment --comment "billing/ledger-grpc:grpc has no endpoints" -m addrtype --dst-type LOCAL -j REJECT'
PLACE = "KUBE-EXTERNAL-SERVICES 2"
RULES = ResultTable(
    "Rules",
    ("packets", "table", "place", "verdict", "rule"),
    [(4, "ip filter", PLACE, "REJECT", RULE), (3, "ip nat", "x", "DNAT", "y")],
)
OWNER = "Service shop/checkout:tls, NodePort 31222 -> pod shop/checkout-1 (worker-7)"
OWNERS = ResultTable(
    "Owners", ("packets", "what", "whose"), [(18, "reverse MASQUERADE", OWNER), (8, "DNAT", "the administrator")]
)
TIMES = ResultTable(
    "Times",
    ("way", "packets", "median us"),
    [("node PREROUTING > node FORWARD", 127, 185.364), ("client > node", 1, 52138.4)],
    "median us",
)


def lines(table: ResultTable, width: int) -> list[str]:
    """The lines of a table on a terminal of a width."""
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, color_system=None).print(result_table._drawn(table, width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def words(found: list[str]) -> list[str]:
    return " ".join(found).split()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("table", [RULES, OWNERS, TIMES], ids=lambda table: table.title)
def test_no_word_is_divided(table: ResultTable, width: int) -> None:
    found = lines(table, width)
    assert max(map(len, found)) <= width
    expected = [word for row in table.rows for value in row if isinstance(value, str) for word in value.split()]
    assert set(expected) <= set(words(found))


def test_a_long_text_stands_below_its_row_where_it_has_no_room() -> None:
    narrow = lines(RULES, 80)
    assert narrow[0].split() == ["packets", "table", "place", "verdict"] and narrow[1] == "        rule"
    assert narrow[2].split() == ["4", "ip", "filter", *PLACE.split(), "REJECT"] and narrow[3].startswith("        -p tcp")
    assert narrow[2].index("REJECT") == narrow[0].index("verdict")
    wide = lines(RULES, 200)
    assert len(wide) == 3 and wide[1].endswith(RULE)
    assert len(lines(OWNERS, 80)) == 4, "two lines beside the other columns are better"


def test_times_have_a_unit_and_bars_need_room() -> None:
    narrow, wide = lines(TIMES, 50), lines(TIMES, 80)
    assert narrow[0].split() == ["way", "packets", "median"] and narrow[1].endswith(" 185us") and narrow[2].endswith(" 52.1ms")
    assert "█" in wide[2] and not any("█" in line for line in narrow)
    out = io.StringIO()
    result_table.show([TIMES], out, "json")
    assert json.loads(out.getvalue())["rows"][0]["median us"] == 185.364


def test_escapes_and_empty_tables() -> None:
    hostile = ResultTable("Rules", RULES.columns, [(4, "ip\x1b[2J", PLACE, "REJECT\n", RULE + "\u202e")])
    assert all(line.isprintable() for line in lines(hostile, 80))
    assert lines(ResultTable("Rules", RULES.columns), 80)[1] == "nothing"
