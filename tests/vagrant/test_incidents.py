# SPDX-License-Identifier: Apache-2.0
"""The incidents' rulesets are as kube-proxy and portmap write them; each incident has an expected finding. Needs no root."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vagrant"))

import incidents
from incidents import links, objects
from tracer.findings import finders, syn_finders
from tracer.kube.chain_names import endpoint_hash, portmap_chain
from tracer.kube.store import ObjectStore
from tracer.model.rule import Ruleset
from tracer.rules import save_parser

NAMES = sorted(p.stem for p in incidents.RULESETS.glob("*.rules"))
ENDS = {"ACCEPT", "DROP", "RETURN", "REJECT", "DNAT", "MASQUERADE", "MARK", ""}
LABEL = re.compile(r'--comment "([a-z0-9-]+/[a-z0-9-]+(?::[a-z0-9-]+)?)".* --to-destination (\S+):(\d+)')
CONTAINER = re.compile(r'name: \\"(\w+)\\" id: \\"(\w+)\\"')


def ruleset(name: str) -> Ruleset:
    return save_parser.parse((incidents.RULESETS / f"{name}.rules").read_text(), "ip", "legacy")


def test_every_incident_has_its_finding_a_broken_and_a_healthy_state() -> None:
    assert [i.number for i in incidents.every()] == [1, 2, 3, 4, 5]
    assert len({i.finding for i in incidents.every()} & {name for name, _ in (*finders(), *syn_finders())}) == 5
    for each in incidents.every():
        assert next(iter(each.states.values())) > 0 and 0 in each.states.values() and each.ports and each.title


@pytest.mark.parametrize("name", NAMES)
def test_jump_targets_exist_and_hashes_are_right(name: str) -> None:
    rules = ruleset(name)
    for (_, table, chain), found in rules.chains.items():
        for rule in found:
            assert rule.target in ENDS or ("ip", table, rule.target) in rules.chains, rule
            end = LABEL.search(rule.text)
            if chain.startswith("KUBE-SEP-") and end:
                assert chain == f"KUBE-SEP-{endpoint_hash(end[1], 'tcp', end[2], int(end[3]))}"
            by = CONTAINER.search(rule.text)
            if by:
                assert rule.target == portmap_chain(by[1], by[2])


def test_the_twins_differ_in_the_stale_rule_only() -> None:
    stale, healthy = (ruleset(name).chain("ip", "nat", "POSTROUTING") for name in ("canal-stale", "canal"))
    gone = [r.text for r in stale if r.text not in {h.text for h in healthy}]
    assert gone == ["! -s 192.168.64.0/20 -d 192.168.66.0/24 -j RETURN"] and len(stale) == len(healthy) + 1


def test_objects_are_as_the_tracer_reads_them() -> None:
    store = ObjectStore("node-1")
    store.load([
        objects.node("node-1", "192.168.56.10", "10.244.0.0/24"),
        objects.service("db/mysql", "172.30.33.7", 3306, 30306, "mysql", externalTrafficPolicy="Local"),
        objects.endpoints("db/mysql", [("mysql-a", "10.244.0.11", "node-1")], 3306, "mysql"),
        objects.pod("db/mysql-b", "10.244.0.12", "node-1", 3306, 3306),
    ])  # fmt: skip
    (end,) = store.endpoints.all(("db/mysql:mysql", "tcp"))
    assert (end.address, end.node, end.pod) == ("10.244.0.11", "node-1", ("db", "mysql-a"))
    assert store.by_node_port.one((30306, "tcp")) and store.by_host_port.one((3306, "tcp"))
    node = store.this_node()
    assert node and node.pod_cidrs == ("10.244.0.0/24",)


def test_states_that_exist_in_one_back_end() -> None:
    five = incidents.find(5)
    assert {"nftables", "nftables-restarted"} == set(five.states_in("nft")) - set(five.states_in("legacy"))
    assert all(set(i.states_in("nft")) == set(i.states) and i.symptom for i in incidents.every())


def test_lines_for_one_namespace_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], str]] = []
    monkeypatch.setattr("subprocess.run", lambda command, input, **_: calls.append((command, input)))
    links.ip("netns add b", "link set x up", "-n b link set lo up", "-n b addr add 10.0.0.1/32 dev lo", "link set y up")
    assert calls == [
        (["ip", "-batch", "-"], "netns add b\nlink set x up\n"),
        (["ip", "-n", "b", "-batch", "-"], "link set lo up\naddr add 10.0.0.1/32 dev lo\n"),
        (["ip", "-batch", "-"], "link set y up\n"),
    ]
