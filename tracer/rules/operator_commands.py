# SPDX-License-Identifier: Apache-2.0
"""Shell commands that show or delete a rule, or show a policy, with the tool of the rule's back end.

The plain command `iptables` may use either back end, and the wrong one does not show the rule.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tracer.model.rule import Rule

TABLES = frozenset({"raw", "mangle", "nat", "filter", "security"})
"""Tables of iptables. nftables has others, and may also have tables with these names."""


def shows(rule: Rule) -> str:
    """The command that lists the chain of a rule, with counters if there are any."""
    if _of_iptables(rule):
        return f"{_tool(rule.family, legacy=not rule.handle)} -t {rule.table} -L {rule.chain} -v -n --line-numbers"
    return f"nft -a list chain {rule.family} {rule.table} {rule.chain}"


def shows_policy(family: str, table: str, chain: str, *, legacy: bool) -> str:
    """The command that shows the policy of a base chain.

    Args:
        family: "ip" or "ip6".
        table: Table name as hops have it; in nftables with its family.
        chain: The base chain.
        legacy: Whether the chain belongs to legacy iptables.
    """
    of, _, name = table.rpartition(" ")
    if legacy or (name in TABLES and of in ("", "ip", "ip6")):
        return f"{_tool(of or family, legacy=legacy)} -t {name} -S {chain} | head -1"
    where = f"nft list chain {of} {name} {chain}" if of else "nft list ruleset"
    return f"{where} | grep -A1 'chain {chain} '"


def saves(rule: Rule, table: str = "") -> str:
    """The command that prints all rules of a rule's back end; with `table`, only those of this table."""
    if not _of_iptables(rule):
        return f"nft -a list table {rule.family} {rule.table}"
    return f"{_tool(rule.family, legacy=not rule.handle)}-save" + (f" -t {table}" if table else "")


def sockets(port: int, protocol: str) -> str:
    """The command that shows the process that listens on a port. ss prints errors for some socket types, so one is given."""
    return f"ss -ln{_SS.get(protocol, 't')}p 'sport = :{port}'"


_SS = {"udp": "u", "sctp": "S"}


def deletes(rule: Rule) -> str:
    """The command that deletes a rule, by its text, which stays valid when other rules are added or deleted."""
    if rule.text and _of_iptables(rule):
        return f"{_tool(rule.family, legacy=not rule.handle)} -t {rule.table} -D {rule.chain} {rule.text}"
    return deletes_by_position(rule)


def deletes_by_position(rule: Rule) -> str:
    """The command that deletes one of several rules with the same text, by its handle or by its present number."""
    if rule.handle:
        return f"nft delete rule {rule.family} {rule.table} {rule.chain} handle {rule.handle}"
    return f"{_tool(rule.family, legacy=True)} -t {rule.table} -D {rule.chain} {rule.number}"


def removes_chains(family: str, table: str, names: Sequence[str], *, legacy: bool) -> str:
    """The commands that empty and then remove chains of iptables.

    Args:
        family: "ip" or "ip6".
        table: Their table.
        names: The chains, together with all chains that jump to one of them, so that each can be removed. A name may have any
            character, so it is quoted.
        legacy: Whether the chains belong to legacy iptables.
    """
    tool, quoted = f"{_tool(family, legacy=legacy)} -t {table}", " ".join(map(shlex.quote, names))
    return "; ".join(f"for c in {quoted}; do {tool} -{what} $c; done" for what in "FX")


def _of_iptables(rule: Rule) -> bool:
    """Whether a rule is of legacy iptables or of iptables-nft, so that its text is that of iptables-save."""
    return not rule.handle or (rule.table in TABLES and rule.text.startswith(("-", "!")))


def _tool(family: str, *, legacy: bool) -> str:
    return f"ip{'6' * (family == 'ip6')}tables-{'legacy' if legacy else 'nft'}"
