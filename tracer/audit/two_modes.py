# SPDX-License-Identifier: Apache-2.0
"""kube-proxy is in ipvs mode, and rules of its iptables mode still act: packets meet them before IPVS.

A change of the mode leaves KUBE-EXTERNAL-SERVICES and the filter table's KUBE-SERVICES, which INPUT, FORWARD and OUTPUT still
jump to. A REJECT "has no endpoints" in them stays forever, also after the Service has endpoints again.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.audit import _traffic
from tracer.audit._senders import HERE, node_address
from tracer.audit.state import NodeState
from tracer.kube.chain_names import IPTABLES_CHAIN
from tracer.kube.rule_text import destination, destination_ports, protocol
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.rule import Rule, Ruleset
from tracer.packets.outcome import BAD
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_endpoint

SHOWN = 5
"""Most rules that are shown."""


def check(state: NodeState) -> Iterator[Finding]:
    if not state.is_ipvs_mode:
        return
    for ruleset in state.installed.rulesets:
        for family in ("ip", "ip6"):
            left = [r for r, of in state.rules() if of is ruleset and r.family == family and _of_iptables_mode(r)]
            if left:
                yield _tell(state, ruleset, left)


def _of_iptables_mode(rule: Rule) -> bool:
    """Whether kube-proxy writes such a rule for a Service in iptables mode, and none in ipvs mode."""
    if IPTABLES_CHAIN.fullmatch(rule.chain) or rule.chain in ("KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS"):
        return True
    return rule.chain == "KUBE-SERVICES" and (rule.table == "filter" or bool(IPTABLES_CHAIN.fullmatch(rule.target)))


def _tell(state: NodeState, ruleset: Ruleset, left: list[Rule]) -> Finding:
    refused = {rule: what for rule in left for what in [_refuses(state, rule, ruleset)] if what}
    plural = "s" * (len(left) > 1)
    harm = ""
    if refused:
        harm = f" {len(refused)} of them refuse{'s' * (len(refused) == 1)} requests that IPVS has real servers for:" + (
            f" {', '.join(dict.fromkeys(text for text, _ in refused.values()))}."
        )
    shown = [*refused, *(r for r in left if r not in refused)][:SHOWN]
    return Finding(
        name="",
        key=(ruleset.backend, left[0].family),
        cause=(
            f"kube-proxy is in ipvs mode, and {len(left)} rule{plural} of its iptables mode still act{'s' * (not plural)}, for"
            f" the jumps to {'them' if plural else 'it'} are there; packets meet rules before IPVS, and kube-proxy does not"
            f" keep these up any more.{harm}"
        ),
        proofs=(
            *(state.proof(r, ruleset, state.owner(r, ruleset).text) for r in shown),
            *(proof for _, proof in list(refused.values())[:SHOWN]),
        ),
        check=f"`{_lists(left)}` shows them; of these chains ipvs mode has KUBE-SERVICES alone, and in the nat table only.",
        cure=(
            "Stop kube-proxy, remove what both modes have left by `kube-proxy --cleanup` of the version that wrote it, start it"
            " again; or reboot the node."
        ),
    )


def _lists(left: list[Rule]) -> str:
    """The command that lists these rules by their chains."""
    tables, chains = {r.table for r in left}, list(dict.fromkeys(r.chain for r in left))
    table = left[0].table if len(tables) == 1 else ""
    return f"{operator_commands.saves(left[0], table)} | grep {' '.join(f'-e {c}' for c in chains[:SHOWN])}"


def _refuses(state: NodeState, rule: Rule, ruleset: Ruleset) -> tuple[str, FindingEvidence] | None:
    """(address refused, evidence) of a rule that refuses requests on all paths although IPVS has real servers for them."""
    ports, proto = destination_ports(rule), protocol(rule) or "tcp"
    if rule.target not in ("REJECT", "DROP") or not ports:
        return None
    address = destination(rule) or node_address(state, rule.family)
    real = state.virtual.real_servers(address, ports[0], proto) if address else None
    if not real:
        return None
    traffic = _traffic.at_port(state, ports[0], proto, address, rule.family == "ip6")
    # IPVS takes the node's own requests in OUTPUT, before the filter table.
    paths = [w for a in traffic if a.sender.name != HERE for w in a.paths]
    if not paths or not all(w.is_met_by(rule) and w.predicted.packet.outcome in BAD for w in paths):
        return None
    owner = state.owner(rule, ruleset)
    at = format_endpoint(address, ports[0])
    server = FindingEvidence("server", f"IPVS virtual server {proto} {at} -> {', '.join(real)}", "/proc/net/ip_vs")
    return at + (f" (Service {owner.label})" if owner.label else ""), server
