# SPDX-License-Identifier: Apache-2.0
"""Rules of kube-proxy are behind the API: they lead to an endpoint that is gone, or a Service with endpoints is not in them.

All Services are compared. If a Service that was made after the first difference is in the rules, kube-proxy has written rules
since then, so the rules as a whole are not behind, and the finding is not certain.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from tracer.audit import _needs
from tracer.audit.state import NodeState
from tracer.findings.rules_behind_objects import (
    SETTLED_SECONDS,
    RuleLag,
    finding,
    gone_endpoint,
    has_service,
    is_down,
    no_endpoints,
    processes,
)
from tracer.kube.chain_names import read_nftables_name
from tracer.kube.rule_text import dnat_target, protocol, split_end
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.kube import ServicePort
from tracer.model.rule import Rule, Ruleset

SHOWN = 3
"""Most differences of which the evidence is shown."""
_ELEMENT = re.compile(r": ([0-9a-f.:]+) \. (\d{1,5})\b")
"""One element of a map of endpoints as nft prints it: the address and the port."""
NEEDS = (_needs.services,)


class _Lag(NamedTuple):
    """A difference with the evidence that the rules have it."""

    lag: RuleLag
    shown: FindingEvidence


def check(state: NodeState) -> Iterator[Finding]:
    store, now = state.cluster.store, int(time.time())
    if not state.has_kube_proxy or not len(store.endpoints):
        return
    rules = _reached(state)
    found = [*_gone(state), *_missing(state, rules)]
    old = sorted((x for x in found if x.lag.changed and now - x.lag.changed >= SETTLED_SECONDS), key=lambda x: x.lag.changed)
    if not old:
        return
    since, known = old[0].lag.changed, processes(state.context)
    newer = next(
        (port for port in store.services.values() if _created(state, port) > since and _is_in(state, rules, port)), None
    )
    certain = store.is_followed and is_down(known) and newer is None
    shown = [x.shown for x in old[:SHOWN]]
    made = finding([x.lag for x in old], shown, known, now - since, certain=certain, is_followed=store.is_followed)
    if newer:
        text = f"Service {newer.label} was made after that, and has rules"
        made = replace(made, proofs=(*made.proofs, FindingEvidence("object", text, "Kubernetes API")))
    yield made


def _reached(state: NodeState) -> list[Ruleset]:
    """The rulesets, with the chains that packets can reach."""
    return [
        replace(ruleset, chains={key: r for key, r in ruleset.chains.items() if key in state.reach(ruleset).chains})
        for ruleset in state.installed.rulesets
    ]


def _created(state: NodeState, port: ServicePort) -> int:
    times = state.cluster.store.times.one((port.namespace, port.name))
    return times.created if times else 0


def _is_in(state: NodeState, rules: list[Ruleset], port: ServicePort) -> bool:
    """Whether rules, or IPVS, lead to endpoints of a Service port."""
    return all(_is_in_family(state, rules, port, v6=":" in address) for address in port.cluster_ips)


def _is_in_family(state: NodeState, rules: list[Ruleset], port: ServicePort, *, v6: bool) -> bool:
    if state.is_ipvs_mode:
        addresses = (address for address in port.cluster_ips if (":" in address) == v6)
        return any(state.virtual.real_servers(address, port.port, port.protocol) for address in addresses)
    return any(has_service(each, port, v6=v6) for each in rules)


def _missing(state: NodeState, rules: list[Ruleset]) -> Iterator[_Lag]:
    """Services with ready endpoints to which nothing leads."""
    source = "/proc/net/ip_vs" if state.is_ipvs_mode else state.installed.source(*_first(state))
    ports = state.cluster.store.services.values()
    for port, v6 in dict.fromkeys((each, ":" in address) for each in ports for address in each.cluster_ips):
        lag = no_endpoints(port, state.cluster, v6=v6)
        if lag and not _is_in_family(state, rules, port, v6=v6):
            what = "virtual server with a real server" if state.is_ipvs_mode else "chain"
            yield _Lag(lag, FindingEvidence("rule", f"there is no {what} for Service {port.label}", source))


def _first(state: NodeState) -> tuple[Rule, Ruleset]:
    """A rule of kube-proxy, by which the tool that printed such rules is named."""
    return next(state.rules("KUBE-SERVICES", "services"))


def _gone(state: NodeState) -> Iterator[_Lag]:
    """Endpoints that the rules have and the API has not."""
    if state.is_ipvs_mode:
        yield from _gone_of_ipvs(state)
        return
    for rule, ruleset in state.rules():
        targets = _targets(rule)
        port = _port_of(state, rule, ruleset) if targets else None
        lags = (gone_endpoint(port, *target, state.cluster) for target in targets) if port else ()
        for lag in filter(None, lags):
            yield _Lag(lag, state.proof(rule, ruleset, state.owner(rule, ruleset).text))


def _targets(rule: Rule) -> list[tuple[str, int]]:
    """The endpoints to which a rule of kube-proxy sends. In nftables mode one rule may have all endpoints of a Service."""
    if not rule.chain.startswith("KUBE-SEP-") and rule.table != "kube-proxy":
        return []
    target = dnat_target(rule)
    if target:
        return [target]
    ends = rule.text.partition("dnat ")[2].partition(" map {")[2]
    return [(address, int(number)) for address, number in _ELEMENT.findall(ends)]


def _port_of(state: NodeState, rule: Rule, ruleset: Ruleset) -> ServicePort | None:
    """The Service port for which a rule is written; None = the API does not have it any more."""
    named = read_nftables_name(rule.chain)
    owner = state.owner(rule, ruleset)
    of = named.protocol if named else protocol(rule) or "tcp"
    ports = state.cluster.store.services.all((owner.namespace, owner.name)) if owner.kind == "Service" else ()
    return next((port for port in ports if (port.label, port.protocol) == (owner.label, of)), None)


def _gone_of_ipvs(state: NodeState) -> Iterator[_Lag]:
    for port in state.cluster.store.services.values():
        for address in port.cluster_ips:
            for real in state.virtual.real_servers(address, port.port, port.protocol) or ():
                lag = gone_endpoint(port, *split_end(real), state.cluster)
                if lag:
                    text = f"IPVS virtual server {port.protocol} {address}:{port.port} -> {real}"
                    yield _Lag(lag, FindingEvidence("server", text, "/proc/net/ip_vs"))
