# SPDX-License-Identifier: Apache-2.0
"""Columns that several tables have: endpoints, times, the rule of a decision, and the objects of a packet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tracer.analysis.packet_attribution import Attribution
from tracer.analysis.packet_decision import Decision, table_of
from tracer.analysis.table_schema import BIGINT, TIMESTAMP, VARCHAR, Column, number, text, timestamp
from tracer.model.endpoints import Endpoints
from tracer.model.packet import Packet
from tracer.model.rule import format_path

Source = TypeVar("Source")


def endpoints(of: Callable[[Source], Endpoints | None], prefix: str, meaning: str) -> tuple[Column[Source], ...]:
    """Four columns: addresses and ports. prefix: of their names; meaning: which endpoints, "as sent"."""

    def get(source: Source, name: str) -> str | int | None:
        ends = of(source)
        return (getattr(ends, name) or None) if ends else None

    what = {"src": "Source address", "sport": "Source port", "dst": "Destination address", "dport": "Destination port"}
    return tuple(
        Column(f"{prefix}{name}", BIGINT if name.endswith("port") else VARCHAR, f"{words} {meaning}",
               lambda source, name=name: get(source, name))  # type: ignore[misc]
        for name, words in what.items()
    )  # fmt: skip


def times(of: Callable[[Source], int], meaning: str, name: str = "seen") -> tuple[Column[Source], Column[Source]]:
    """Two columns: a time in us and in ns. of: gives ns since the epoch, 0 = not known."""
    return (
        Column(f"{name}_at", TIMESTAMP, f"{meaning}, UTC", lambda source: timestamp(of(source)), "us"),
        Column(f"{name}_ns", BIGINT, "The same time since the epoch", lambda source: number(of(source)), "ns"),
    )


def deciding_rule(packet: Callable[[Source], Packet], of: Callable[[Source], Decision | None]) -> tuple[Column[Source], ...]:
    """The columns of the rule of a decision. packet: its packet; of: the decision."""

    def table(source: Source) -> tuple[str, str]:
        found = of(source)
        return table_of(packet(source), found.hop, found.hit) if found and found.hit else ("", "")

    def hit(source: Source) -> tuple[str, int | None, int | None, str, str, str]:
        """Chain, number, handle, text, comment, path."""
        found = of(source)
        if not found or not found.hit:
            return "", None, None, "", "", ""
        rule, place, path = found.hit.rule, found.hit.location, format_path(found.hit.path)
        if not rule:
            return place.chain, None, None, "", "", path
        return rule.chain or place.chain, number(rule.number), number(rule.handle), rule.text, rule.comment, path

    return (
        Column("nf_family", VARCHAR, "Family of the rule's table: ip, ip6, inet, bridge, netdev",
               lambda s: text(table(s)[0])),
        Column("nf_table", VARCHAR, "The rule's table", lambda s: text(table(s)[1])),
        Column("nf_chain", VARCHAR, "The rule's chain", lambda s: text(hit(s)[0])),
        Column("rule_number", BIGINT, "Place of the rule in its chain, from 1; NULL for a policy", lambda s: hit(s)[1]),
        Column("rule_handle", BIGINT, "Handle of the rule in nftables; NULL with legacy iptables", lambda s: hit(s)[2]),
        Column("rule_text", VARCHAR, "The rule as a user writes it", lambda s: text(hit(s)[3])),
        Column("rule_comment", VARCHAR, "Comment of the rule", lambda s: text(hit(s)[4])),
        Column("rule_path", VARCHAR, "Chains and numbers from the base chain to the rule", lambda s: text(hit(s)[5])),
        Column("rule_evidence", VARCHAR, "`observed`: the rule's function was seen to act; `derived`: computed",
               lambda s: found.hit.evidence.value if (found := of(s)) and found.hit else None),
    )  # fmt: skip


def attribution(of: Callable[[Source], Attribution]) -> tuple[Column[Source], ...]:
    """The columns of an attribution. of: gives the attribution of a row."""
    return (
        Column("service", VARCHAR, "Name of the Service that was asked for", lambda s: text(of(s).service)),
        Column("service_port", VARCHAR, "Name of the Service's port; NULL also if the port has no name",
               lambda s: text(of(s).service_port)),
        Column("service_evidence", VARCHAR, "`observed`: a rule or a virtual server of this Service was seen to act on the "
               "connection; "
               "`derived`: computed from rules, or from an address and the API's objects",
               lambda s: text(of(s).service_evidence)),
        Column("namespace", VARCHAR, "Kubernetes namespace of the Service; without a Service, of the workload",
               lambda s: text(of(s).namespace)),
        Column("workload", VARCHAR, "Name of the pod that serves: the target of DNAT, or the pod at the address",
               lambda s: text(of(s).workload)),
        Column("workload_namespace", VARCHAR, "Kubernetes namespace of that pod",
               lambda s: text(of(s).workload_namespace)),
        Column("client_workload", VARCHAR, "Name of the client's pod", lambda s: text(of(s).client)),
        Column("client_namespace", VARCHAR, "Kubernetes namespace of the client's pod",
               lambda s: text(of(s).client_namespace)),
    )  # fmt: skip
