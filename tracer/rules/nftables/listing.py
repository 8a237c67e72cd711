# SPDX-License-Identifier: Apache-2.0
"""The text of rules as a user writes it, from `nft`, and from `iptables-nft-save` for the tables of iptables-nft.

`nft` hides the comments, matches and targets of the latter. Both tools only read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from tracer.model.rule import Rule
from tracer.node import tools
from tracer.rules import save_parser
from tracer.rules.nftables.nft_tool import NftUnusable, nft_tool
from tracer.util.lazy import LazyList

IPTABLES_TABLES = frozenset({"raw", "mangle", "nat", "filter", "security"})
SAVE = {"ip": "iptables-nft-save", "ip6": "ip6tables-nft-save"}
Saved = Callable[[str, str], Mapping[str, Sequence[Rule]]]
"""Gives the rules of a table of iptables-nft by chain. Arguments: family, table."""
_HANDLE = re.compile(r"^(?P<text>.*?) # handle (?P<handle>\d+)$", re.S)
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\\.')
_CHAIN = re.compile(r"^\tchain (?P<name>\S+) \{")


def saved(text: str) -> dict[str, Sequence[Rule]]:
    """Parses the output of iptables-save for one table, with or without counters.

    Returns:
        The rules by chain; {} if it is ambiguous which lines are rules.
    """
    chains: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line.startswith("["):
            line = line.partition("] ")[2]
        if line.startswith("-A "):
            if _has_open_quote(line):
                # A comment or a prefix has a newline in it, so its writer could forge the next lines.
                return {}
            _, chain, *rest = line.split(" ", 2)
            chains.setdefault(chain, []).append(rest[0] if rest else "")
        elif line.startswith(":"):
            chains.setdefault(line[1:].split(" ", 1)[0], [])
    return {chain: _rules(chain, texts) for chain, texts in chains.items()}


def _has_open_quote(line: str) -> bool:
    return '"' in line and '"' in _QUOTED.sub("", line)


def _rules(chain: str, texts: list[str]) -> Sequence[Rule]:
    return LazyList(len(texts), lambda at: save_parser.rule("", "", chain, at + 1, texts[at]))


def listed(text: str) -> dict[int, str]:
    """Parses the output of `nft -s -a list table`: the text of each rule by its handle.

    A rule that nft writes on several lines, because of a long map, is joined to one line.
    """
    out: dict[int, str] = {}
    in_chain, parts = False, list[str]()
    for line in text.split("\n"):
        if line == "\t}":
            in_chain, parts = False, []
        elif _CHAIN.match(line):
            in_chain = True
        elif in_chain:
            parts.append(line.strip())
            found = _HANDLE.match(" ".join(parts))
            if found:
                out[int(found["handle"])] = _without_header(found["text"])
                parts = []
            elif _is_header(parts[0]):
                parts = []
    return out


def _is_header(line: str) -> bool:
    """Whether a line has no handle and is no rule: the type of a base chain, or the comment of a chain."""
    return (line.startswith("type ") and " hook " in line) or (line.startswith('comment "') and line.endswith('"'))


def _without_header(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip() if '"' not in text else text.strip()


def run(*command: str) -> str | None:
    """Output of a tool; None if it is missing, fails or takes too long."""
    try:
        return tools.output(*command)
    except OSError:
        return None


class Listings:
    """listed() of the tables of this namespace; nft runs once per family. {} if `nft` is missing, fails or is slow.

    `nft -t list ruleset` does not read the elements of named sets: for a set of a million elements `nft list table` takes 600
    MB and, on a busy machine, a minute. (`nft -t list table` still reads them, in nft 1.0.6.)

    Args:
        sets: Number of sets and maps in the namespace.

    Attributes:
        why_unused: Why nft did not list the rules, a clause; "" = it did, or was not asked.
    """

    def __init__(self, sets: int = 0) -> None:
        self._families: dict[str, dict[str, str]] = {}
        self._sets, self.why_unused = sets, ""

    def __call__(self, family: str, table: str) -> dict[int, str]:
        if family not in self._families:
            parts = ("\n" + self._list(family)).split(f"\ntable {family} ")[1:]
            tables = [part.split(" ", 1)[0] for part in parts]
            # A name may have a newline in it and look like the beginning of another table: then the result is ambiguous.
            self._families[family] = dict(zip(tables, parts, strict=True)) if len(set(tables)) == len(tables) else {}
        return listed(self._families[family].get(table, ""))

    def _list(self, family: str) -> str:
        try:
            return nft_tool.output("-t", "-s", "-a", "list", "ruleset", family, sets=self._sets)
        except NftUnusable as e:
            self.why_unused = str(e)
            return ""


class SaveTexts:
    """saved() of the tables of this namespace; the tool runs once per family. {} for a table that does not belong to iptables,
    or if the tool is missing or fails."""

    def __init__(self) -> None:
        self._families: dict[str, dict[str, str]] = {}

    def __call__(self, family: str, table: str) -> Mapping[str, Sequence[Rule]]:
        if family not in SAVE or table not in IPTABLES_TABLES:
            return {}
        if family not in self._families:
            parts = ("\n" + (run(SAVE[family]) or "")).split("\n*")[1:]
            self._families[family] = {part.split("\n", 1)[0]: part for part in parts}
        return saved(self._families[family].get(table, ""))
