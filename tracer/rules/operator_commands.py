# SPDX-License-Identifier: Apache-2.0
"""What an operator types to see a rule, a policy, or to delete a rule: with the tool of the back end that it is in.

`iptables` alone may be either back end, and the wrong one shows nothing of the rule.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tracer.model.rule import Rule

TABLES = frozenset({"raw", "mangle", "nat", "filter", "security"})
"""Of iptables; nftables has others, and may have these too."""


def shows(rule: Rule) -> str:
    """The command that lists a rule's chain, with counters where they are kept."""
    if _of_iptables(rule):
        return f"{_tool(rule.family, legacy=not rule.handle)} -t {rule.table} -L {rule.chain} -v -n --line-numbers"
    return f"nft -a list chain {rule.family} {rule.table} {rule.chain}"


def shows_policy(family: str, table: str, chain: str, *, legacy: bool) -> str:
    """The command that shows a base chain's policy.

    family: "ip" or "ip6". table: as hops have it, in nftables with its family.
    """
    of, _, name = table.rpartition(" ")
    if legacy or (name in TABLES and of in ("", "ip", "ip6")):
        return f"{_tool(of or family, legacy=legacy)} -t {name} -S {chain} | head -1"
    where = f"nft list chain {of} {name} {chain}" if of else "nft list ruleset"
    return f"{where} | grep -A1 'chain {chain} '"


def saves(rule: Rule, table: str = "") -> str:
    """The command that prints all rules of the back end that a rule is in. table: only those of this table."""
    if not _of_iptables(rule):
        return f"nft -a list table {rule.family} {rule.table}"
    return f"{_tool(rule.family, legacy=not rule.handle)}-save" + (f" -t {table}" if table else "")


def sockets(port: int, protocol: str) -> str:
    """The command that shows which process waits on a port. Asked for all kinds of sockets, ss prints errors of some."""
    return f"ss -ln{_SS.get(protocol, 't')}p 'sport = :{port}'"


_SS = {"udp": "u", "sctp": "S"}


def deletes(rule: Rule) -> str:
    """The command that deletes a rule: by its text, which stays right when others come and go."""
    if rule.text and _of_iptables(rule):
        return f"{_tool(rule.family, legacy=not rule.handle)} -t {rule.table} -D {rule.chain} {rule.text}"
    return deletes_this_one(rule)


def deletes_this_one(rule: Rule) -> str:
    """The same for one of several that have the same text: by its handle, or by its number of now."""
    if rule.handle:
        return f"nft delete rule {rule.family} {rule.table} {rule.chain} handle {rule.handle}"
    return f"{_tool(rule.family, legacy=True)} -t {rule.table} -D {rule.chain} {rule.number}"


def removes_chains(family: str, table: str, names: Sequence[str], *, legacy: bool) -> str:
    """The commands that empty and then remove chains of iptables. names: with all that lead to one of them, so that each can be
    removed. A name can have any character, so it is quoted."""
    tool, quoted = f"{_tool(family, legacy=legacy)} -t {table}", " ".join(map(shlex.quote, names))
    return "; ".join(f"for c in {quoted}; do {tool} -{what} $c; done" for what in "FX")


def _of_iptables(rule: Rule) -> bool:
    """Legacy, or in nftables by iptables-nft: its text is then that of iptables-save."""
    return not rule.handle or (rule.table in TABLES and rule.text.startswith(("-", "!")))


def _tool(family: str, *, legacy: bool) -> str:
    return f"ip{'6' * (family == 'ip6')}tables-{'legacy' if legacy else 'nft'}"
