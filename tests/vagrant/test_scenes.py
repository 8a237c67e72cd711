# SPDX-License-Identifier: Apache-2.0
"""The rulesets of vagrant/scenes are as kube-proxy writes them. Needs no root and no virtual machine."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vagrant"))

from scenes import packets, rules, servers, topology
from scenes.netns import Child, ChildFailed
from scenes.traffic import Reply
from tests.support.waiting import PATIENCE

BUILT_IN = {"ACCEPT", "DROP", "RETURN", "REJECT", "DNAT", "MASQUERADE", "MARK"}
HOOKS = {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
FULL = [n for n in rules.names() if n.startswith("http-proxy")]
NODE_PORTS = {
    "default/http-proxy": "30285",
    "default/dns-proxy:dns": "30053",
    "default/lonely-web:http": "30584",
}
RULE = re.compile(r"-[AI] (?P<chain>\S+)(?P<matches>.*?)(?: -j (?P<target>\S+)(?P<options>.*))?")
COMMENT = re.compile(r'--comment "([^"]*)"')


def tables(name: str) -> dict[str, tuple[dict[str, str], list[re.Match[str]]]]:
    """{table: ({chain: policy or "-"}, rules)}; asserts that iptables-restore accepts the form of each line."""
    out: dict[str, tuple[dict[str, str], list[re.Match[str]]]] = {}
    open_table = ""
    for line in rules.read(name).splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("*"):
            assert not open_table
            open_table = line[1:]
            out[open_table] = ({}, [])
        elif line.startswith(":"):
            chain, policy, zero = line[1:].split()
            assert zero == "[0:0]" and chain not in out[open_table][0]
            out[open_table][0][chain] = policy
        elif line == "COMMIT":
            open_table = ""
        else:
            match = RULE.fullmatch(line)
            assert match, line
            out[open_table][1].append(match)
    assert not open_table
    return out


def all_rules(name: str) -> Iterator[re.Match[str]]:
    for _, found in tables(name).values():
        yield from found


def hashed(prefix: str, *parts: str) -> str:
    """kube-proxy's chain name: the first 16 characters of the base32 of a SHA-256."""
    return prefix + base64.b32encode(hashlib.sha256("".join(parts).encode()).digest()).decode()[:16]


@pytest.mark.parametrize("name", rules.names())
def test_chains_and_targets_are_declared(name: str) -> None:
    for chains, found in tables(name).values():
        assert {p for c, p in chains.items() if c not in HOOKS} <= {"-"}
        for rule in found:
            assert rule["chain"] in chains or (name not in FULL and rule["chain"] in HOOKS)
            assert rule["target"] in chains or rule["target"] in BUILT_IN


@pytest.mark.parametrize("name", FULL)
def test_every_hashed_chain_follows_from_its_service_and_endpoint(name: str) -> None:
    explained: set[str] = set()
    for rule in all_rules(name):
        comment = COMMENT.search(rule["matches"])
        proto = re.search(r"-p (\w+)", rule["matches"])
        if not comment or not proto:
            continue
        service = comment[1].removesuffix(" cluster IP")
        if rule["target"] == "DNAT":
            endpoint = rule["options"].split()[-1]
            assert rule["chain"] == hashed("KUBE-SEP-", service, proto[1], endpoint)
            explained.add(rule["chain"])
        elif (rule["target"] or "").startswith(("KUBE-SVC-", "KUBE-EXT-")):
            assert rule["target"] == hashed(rule["target"][:9], service, proto[1])
            explained.add(rule["target"])
    declared = {c for chains, _ in tables(name).values() for c in chains if re.match("KUBE-(SVC|SEP|EXT)-", c)}
    # from 1.24 on the jump KUBE-EXT-x -> KUBE-SVC-x has no comment: the same 16 characters show the Service
    assert explained == declared


@pytest.mark.parametrize("name", FULL)
def test_external_chain_leads_to_the_service_chain_of_the_same_hash(name: str) -> None:
    jumps = [r for r in all_rules(name) if r["chain"].startswith("KUBE-EXT-") and r["target"] != "KUBE-MARK-MASQ"]
    assert all(r["target"] == r["chain"].replace("EXT", "SVC") for r in jumps)
    assert len(jumps) == (0 if name == "http-proxy-1.20" else 2)


@pytest.mark.parametrize("name", FULL)
def test_node_ports_belong_to_the_services_and_endpoints_to_the_pods(name: str) -> None:
    six = rules.family_of(name) == 6
    seen: dict[str, set[str]] = {}
    for rule in all_rules(name):
        if "--to-destination" in (rule["options"] or ""):
            endpoint = rule["options"].split()[-1]
            comment = COMMENT.search(rule["matches"])
            assert comment
            seen.setdefault(comment[1], set()).add(endpoint)
        node_port = re.search(r"--dport (30\d+)", rule["matches"])
        if node_port:
            comment = COMMENT.search(rule["matches"])
            assert comment and NODE_PORTS[comment[1].removesuffix(" has no endpoints")] == node_port[1]
    for service, port in (("default/http-proxy", 8080), ("default/dns-proxy:dns", 5353)):
        expected = {f"[{p.addr6}]:{port}" if six else f"{p.addr4}:{port}" for p in topology.PODS}
        assert seen[service] == expected


@pytest.mark.parametrize("name", FULL)
def test_node_ports_are_matched_last(name: str) -> None:
    services = [r for r in tables(name)["nat"][1] if r["chain"] == "KUBE-SERVICES"]
    assert [r["target"] for r in services].index("KUBE-NODEPORTS") == len(services) - 1


@pytest.mark.parametrize("name", FULL)
def test_endpoint_probabilities_share_evenly(name: str) -> None:
    left: dict[str, float] = {}
    shares: dict[str, list[float]] = {}
    for rule in all_rules(name):
        if rule["chain"].startswith("KUBE-SVC-") and (rule["target"] or "").startswith("KUBE-SEP-"):
            found = re.search(r"--probability ([\d.]+)", rule["matches"])
            rest, p = left.get(rule["chain"], 1.0), float(found[1]) if found else 1.0
            shares.setdefault(rule["chain"], []).append(rest * p)
            left[rule["chain"]] = rest * (1 - p)
    assert shares
    for each in shares.values():
        assert sum(each) == pytest.approx(1) and max(each) - min(each) < 1e-6


def test_unknown_ruleset_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="http-proxy"):
        rules.read("nothing")


@pytest.mark.parametrize("version", [4, 6])
def test_tcp_checksum_sums_up_to_ffff(version: int) -> None:
    family, one = (socket.AF_INET, "10.0.0.1") if version == 4 else (socket.AF_INET6, "fd00::1")
    other = one[:-1] + "2"
    src, dst = (socket.inet_pton(family, a) for a in (one, other))
    segment = packets._tcp(src, dst, 1, 8080, 5, packets.SYN)
    words = src + dst + struct.pack("!HH", socket.IPPROTO_TCP, len(segment)) + segment
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF


def test_reply_has_server_and_source() -> None:
    reply = Reply("answered", "pod-a from [fd00:10:244::1]:4711 question", 1, 0.1)
    assert (reply.server, reply.seen_source) == ("pod-a", "fd00:10:244::1")
    assert Reply("answered", "pod-b from 10.244.0.1:40812", 1, 0.1).seen_source == "10.244.0.1"
    assert (Reply("timeout", "", 1, 0.1).server, Reply("timeout", "", 1, 0.1).seen_source) == ("", "")


def test_server_names_a_mapped_address_as_ipv4() -> None:
    assert servers._text(("::ffff:10.244.0.1", 1, 0, 0)) == "10.244.0.1:1"
    assert servers._text(("fd00::1", 1, 0, 0)) == "[fd00::1]:1"


def test_child_returns_its_result_or_its_traceback() -> None:
    assert Child(None, lambda: 6 * 7).result(timeout=PATIENCE) == 42
    with pytest.raises(ChildFailed, match="ZeroDivisionError"):
        Child(None, lambda: 1 // 0).result(timeout=PATIENCE)
