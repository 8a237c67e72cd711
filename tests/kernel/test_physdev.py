# SPDX-License-Identifier: Apache-2.0
"""explain's result for `-m physdev` equals the kernel's counters, for packets from, to and between pods of the bridge."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenes import rules, topology
from scenes.netns import entered
from tests.support import hop_fields
from tracer.model.hop import trace_of
from tracer.predict.path import PathPredictor
from tracer.predict.query import PathQuery
from tracer.rules import inventory

PORT = 9999
MATCHES = ("--physdev-is-in", "! --physdev-is-in", "--physdev-is-out", "! --physdev-is-out", "--physdev-is-bridged",
           "--physdev-in veth-a", "! --physdev-in veth-a", "--physdev-out veth-b")  # fmt: skip
HOOKS = ("PREROUTING", "INPUT", "FORWARD", "POSTROUTING")
RULES = "".join(f"-A {hook} -p udp -m udp --dport {PORT} -m physdev {match}\n" for hook in HOOKS for match in MATCHES)
POD, OTHER_POD = topology.PODS[0], topology.PODS[1]
PATHS = {
    "pod to outside": (POD.name, POD.addr4, topology.DRAIN4),
    "pod to node": (POD.name, POD.addr4, topology.NODE4),
    "pod to pod": (POD.name, POD.addr4, OTHER_POD.addr4),
    "outside to pod": (topology.CLIENT, topology.CLIENT4, OTHER_POD.addr4),
    "node to pod": ("", topology.GATEWAY4, POD.addr4),
}
Rule = tuple[str, int]


@pytest.fixture(params=["1", "0"], ids=["bridged packets come to iptables", "they do not"])
def bridge_nf(node: None, request: pytest.FixtureRequest) -> Iterator[None]:
    switch = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    before = switch.read_text()
    switch.write_text(request.param)
    rules.restore_text(f"*mangle\n{RULES}COMMIT\n", 4, "legacy", flush=False)
    yield
    switch.write_text(before)
    rules.restore("http-proxy", "http-proxy-v6")


def matched() -> set[Rule]:
    """The rules (chain, number) that have matched since the last call."""
    saved = subprocess.run(["iptables-legacy-save", "-c", "-t", "mangle"], capture_output=True, text=True, check=True).stdout
    subprocess.run(["iptables-legacy", "-t", "mangle", "-Z"], check=True)
    found, numbers = set(), dict.fromkeys(HOOKS, 0)
    for count, chain in re.findall(r"^\[(\d+):\d+\] -A (\S+)", saved, re.M):
        numbers[chain] += 1
        found |= {(chain, numbers[chain])} if int(count) else set()
    return found


def send(ns: str, to: str) -> None:
    with entered(ns or None), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", (to, PORT))


def explained(source: str, dest: str) -> list[set[Rule]]:
    """The rules that match on each predicted path."""
    matching = []
    predicted_paths = PathPredictor(inventory.read(False)).predict(PathQuery(source, 0, dest, PORT, "udp"))
    for predicted in (each for found in predicted_paths for each in found.with_twins()):
        hits = [
            v
            for h in predicted.packet.hops
            if hop_fields.table(h) == "mangle" and trace_of(h)
            for v in hop_fields.hits(h)
            if v.rule
        ]
        matching.append({(v.location.chain, v.location.number) for v in hits})
    return matching


def test_predicted_rules_are_those_that_match(bridge_nf: None) -> None:
    wrong, compared = list[tuple[str, Rule, str]](), 0
    for name, (ns, source, dest) in PATHS.items():
        predicted = explained(source, dest)
        matched()
        send(ns, dest)
        seen = matched()
        if not seen:
            continue  # bridged, and iptables does not see it
        compared += 1
        possible = {rule for rules_of_path in predicted for rule in rules_of_path}
        certain = {rule for rule in possible if all(rule in rules_of_path for rules_of_path in predicted)}
        wrong += [(name, rule, "predicted") for rule in certain - seen] + [(name, rule, "seen") for rule in seen - possible]
        # Which port it is, and whether a packet goes back into its bridge as a bridged one, is not computed.
        wrong += [
            (name, rule, "undecided") for rule in possible - certain if name != "pod to pod" and "veth" not in _match(rule)
        ]
    assert not wrong and compared >= len(PATHS) - 1, (wrong, compared)


def _match(rule: Rule) -> str:
    return MATCHES[rule[1] - 1]
