# SPDX-License-Identifier: Apache-2.0
"""Output formats of a query's result: hostile values, widths, and what each reader gets back."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len

from tracer.analysis import formats
from tracer.analysis.formats import FORMATS, QueryResult
from tracer.analysis.formats.text_table import CONTINUED, CUT, MOST_LINES
from tracer.errors import BadOption
from tracer.util.escape import escaped

HOSTILE = [
    "\x1b]52;c;aGk=\x07", "\x1b[2J", "a\nb", "a\r\nb", "=HYPERLINK(1)", "+1", "-1+1",
    "@SUM(1)", "\t=1", " =1", "a|b", "|", "a\\|b",
    "`x`", "<script>alert(1)</script>", "![i](http://192.0.2.1/x)", "[l](http://192.0.2.1)", "http://192.0.2.1/x",
    "www.example.com",
   
    "a@example.com", "&lt;", "\u202eabc", "\udcff", "\x00", "# h", "- [ ] x", "~~x~~", "_x_", "*x*", "**", "", "---", "$x$",
]  # fmt: skip
RESULT = QueryResult(("number", "what is it | where"), [(at, text) for at, text in enumerate(HOSTILE)])


def written(name: str, result: QueryResult) -> str:
    out = io.StringIO(newline="")
    formats.find(name)(result, out)
    return out.getvalue()


@pytest.mark.parametrize("name", FORMATS)
def test_no_control_character_is_written(name: str) -> None:
    text = written(name, RESULT)
    assert all(c.isprintable() or c in "\r\n" for c in text)
    assert len(text.encode()) == len(text.encode(errors="replace")), "also no lone surrogate"


def test_an_unknown_format() -> None:
    with pytest.raises(BadOption, match="choose one of table, csv, json, markdown"):
        formats.find("xml")


def test_csv_has_every_value_and_no_formula() -> None:
    header, *lines = csv.reader(io.StringIO(written("csv", RESULT)))
    assert header == list(RESULT.columns) and len(lines) == len(HOSTILE)
    for text, (_, cell) in zip(HOSTILE, lines, strict=True):
        assert cell.removeprefix("'") == escaped(text)
        assert not cell.lstrip().startswith(("=", "+", "-", "@"))


def test_csv_keeps_numbers_and_empty_cells() -> None:
    assert written("csv", QueryResult(("a", "b", "c", "d"), [(-1, None, 1.5, True)])) == "a,b,c,d\r\n-1,,1.5,true\r\n"


def test_json_has_every_value() -> None:
    (rows,) = (json.loads(written("json", RESULT))["rows"],)
    assert [row[RESULT.columns[1]] for row in rows] == [t if t != "\udcff" else "\\xff" for t in HOSTILE]
    assert json.loads(written("json", QueryResult(("a",), [(float("nan"),), (-0.5,), (None,)])))["rows"] == [
        {"a": None},
        {"a": -0.5},
        {"a": None},
    ]


class Cells(HTMLParser):
    """The texts of the cells of a table, and all tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells and data.strip():
            self.cells[-1] += data


def test_markdown_shows_every_value_and_no_markup() -> None:
    page = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(written("markdown", RESULT))
    found = Cells(page)
    assert found.tags == {"table", "thead", "tbody", "tr", "th", "td"}
    assert found.cells[1::2] == [RESULT.columns[1], *(escaped(text).strip() for text in HOSTILE)]


def test_markdown_has_no_link_that_a_reader_makes_by_itself() -> None:
    text = written("markdown", RESULT)
    assert "://" not in text.replace("\\://", "") and "www.e" not in text and "a@e" not in text


def test_a_table_is_aligned_and_fits() -> None:
    assert written("table", QueryResult(("name", "n"), [("a", 1), ("bc", 20), (None, None)])) == (
        "name   n\n----  --\na      1\nbc    20\n-      -\n"
    )
    assert written("table", QueryResult(("a",), [])) == "No rows.\n"


def test_a_long_text_is_wrapped_inside_its_column() -> None:
    rule = '-p tcp -m comment --comment "billing/ledger has no endpoints" -m addrtype --dst-type LOCAL -j REJECT'
    lines = written("table", QueryResult(("packets", "rule", "owner"), [(4, rule, "x"), (3, "short", "y")])).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) == 5
    assert lines[3].startswith(" " * 9 + CONTINUED) and lines[4].split() == ["3", "short", "y"]
    start, end = 9, 80 - 2 - len("owner")
    wrapped = [line[start:end].strip() for line in lines[2:4]]
    assert " ".join(part.removeprefix(CONTINUED) for part in wrapped) == rule


def test_a_text_that_is_too_long_is_cut_with_a_mark() -> None:
    lines = written("table", QueryResult(("a", "b"), [("word " * 500, 1)])).splitlines()
    assert len(lines) == 2 + MOST_LINES and lines[-2].endswith(CUT) and max(map(len, lines)) <= 80


def test_no_word_of_a_command_is_divided() -> None:
    """In columns if all words have room there, else as a list."""
    command = "`iptables-nft -t nat -L KUBE-EXTERNAL-SERVICES -v -n --line-numbers` shows its counter"
    for owner in ("Service billing/ledger-grpc:grpc, NodePort 31443, no endpoints", "x"):
        for count in (1, 3):
            result = QueryResult(("n", *(f"text{n}" for n in range(count)), "owner"), [(1, *[command] * count, owner)])
            text = written("table", result)
            found = [word for line in text.splitlines() for word in line.replace(CONTINUED, "").split()]
            assert set(command.split()) | set(owner.split()) <= set(found) and CUT not in text


def test_numbers_are_never_wrapped() -> None:
    values = tuple(10**15 + n for n in range(9))
    text = written("table", QueryResult(tuple("abcdefghi"), [values]))
    assert all(str(value) in text for value in values) and text.startswith("row 1\n  a  1000000000000000\n")


texts = st.text(st.characters(codec="utf-8"), max_size=120)
values = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63), texts)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.lists(texts, min_size=n, max_size=n),
                                                     st.lists(st.tuples(*[values] * n), min_size=1, max_size=4))))  # fmt: skip
def test_no_line_of_any_table_is_longer_than_80_columns(made: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    columns, rows = made
    for line in written("table", QueryResult(tuple(columns), rows)).splitlines():
        assert cell_len(line) <= 80 and (line.isprintable())
