# SPDX-License-Identifier: Apache-2.0
"""The one-line format, on the packets of sample_packets.py and on packets of shared paths."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support import sample_packets as samples
from tests.support.builders import Trail
from tests.support.shared_paths import assembled, delivered, forwarded, rows_of
from tests.support.terminal import Terminal
from tracer import render
from tracer.cli import main
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import RewriteHop, Socket
from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.model.summary import RunSummary
from tracer.packets.shared_path import shared_hops
from tracer.pipeline.sinks import OutputSpec
from tracer.render.oneline import OneLineOutput
from tracer.util.frozen import evolve

FIELDS = 8


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def lines(*packets: Packet, out: io.StringIO | None = None) -> list[str]:
    out = out or io.StringIO()
    output = OneLineOutput(out, io.StringIO())
    for packet in packets:
        output.packet(packet)
    return out.getvalue().splitlines()


def fields(packet: Packet) -> list[str]:
    (line,) = lines(packet)
    found = line.split("  ")
    assert len(found) == FIELDS, line
    return found


def with_rule(packet: Packet, text: str = "KUBE-SEP-X", evidence: Evidence = Evidence.OBSERVED, undecided: str = "") -> Packet:
    """The packet, with a rule and an owner for each translation."""
    places = (RuleLocation("PREROUTING", 1), RuleLocation(text, 2))
    rule = Rule("ip", "nat", text, 2, "-j DNAT", target="DNAT")
    trace = RuleTrace((RuleHit(places, rule, "DNAT", evidence),), undecided=undecided)
    owner = Owner("Service", "shop", text, detail="NodePort 30285")
    changed = {"rule_trace": trace, "owner": owner}
    return replace(packet, hops=tuple(evolve(h, **changed) if isinstance(h, RewriteHop) else h for h in packet.hops))


def test_it_is_a_format() -> None:
    assert render.find("oneline") is OneLineOutput


def test_each_field_of_a_translated_packet() -> None:
    assert fields(with_rule(samples.node_port())) == [
        "14:03:22.118",
        "192.168.56.1:40812 -> 192.168.56.10:30285",
        "TCP SYN",
        "node: eth0 > cni0, pod http-proxy: eth0",
        "DNAT 10.244.0.11:8080, MASQUERADE 10.244.0.1:23711",
        "KUBE-SEP-X 2",
        "Service shop/KUBE-SEP-X, NodePort 30285",
        "SYN answered by pid 4242 nginx in pod http-proxy",
    ]


def test_a_reply_has_the_rule_of_the_service() -> None:
    found = fields(with_rule(samples.node_port_reply(), evidence=Evidence.DERIVED))
    assert found[4:6] == [
        "reverse MASQUERADE 192.168.56.1:40812 (derived), reverse DNAT 192.168.56.10:30285",
        "KUBE-SEP-X 2 (derived)",
    ]


def test_fields_without_a_value() -> None:
    assert fields(samples.ping())[2:] == ["ICMP", "node: lo", "-", "-", "-", "delivered to node's kernel"]


def test_what_is_not_known_is_marked() -> None:
    assert fields(with_rule(samples.node_port(), undecided="two rules fit"))[5] == "rule not known"
    assert fields(samples.full_queue())[7] == "SYN dropped: accept queue 129/128 (incomplete: some of its events were lost)"
    left = replace(samples.ping(), unexplained=Evidence.OBSERVED)
    assert fields(left)[7] == "delivered to node's kernel (not explained by the run)"
    left = replace(samples.ping(), unexplained=Evidence.DERIVED)
    assert fields(left)[7] == "delivered to node's kernel (not explained by the run) (derived)"
    later = replace(samples.ping(), continues=samples.EPOCH - 1_000_000_000)
    assert fields(later)[7] == "delivered to node's kernel (continues the packet of 14:03:21.118)"


def test_a_process_that_was_not_seen_at_the_socket_is_derived() -> None:
    socket = samples.hop(58, "socket", socket=Socket(48213, "ESTABLISHED", 4242, "nginx"), evidence=Evidence.DERIVED)
    packet = replace(samples.with_hops(samples.ping(), socket), verdict="delivered to pid 4242 nginx")
    assert fields(packet)[7] == "delivered to pid 4242 nginx (process derived)"


def test_a_copy_decides_nothing_about_the_packet() -> None:
    refused = samples.rejected()
    copies = [evolve(hop, clone=True, table="ip other", chain="of-a-copy") for hop in refused.hops[:1]]
    rule = Rule("ip6", "kube-proxy", "filter-output", 1, "reject")
    hits = (RuleHit((RuleLocation("filter-output", 1),), rule, "REJECT", Evidence.OBSERVED),)
    own = evolve(refused.hops[0], rule_trace=RuleTrace(hits))
    assert fields(replace(refused, hops=(own, *refused.hops[1:], *copies)))[5] == "filter-output 1"


@pytest.mark.parametrize("name", ["two  blanks", " ", "\x1b[2J", "a\nb", "100%s"])
def test_a_name_stays_one_field_of_one_line(name: str) -> None:
    packet = with_rule(samples.node_port(), name)
    found = fields(replace(packet, iface=name, verdict=f"delivered to {name} there"))
    assert not any("\x1b" in field for field in found)


@pytest.mark.parametrize(
    "trails",
    [
        [delivered(n, 40000 + n, seq=n % 2, length=60 + n, inode=7 + n) for n in range(6)],
        [forwarded(n, 40000 + n, 20000 + n) for n in range(1, 6)],
        [forwarded(n, 7, 8) for n in range(1, 6)],
    ],
    ids=["sockets", "two chosen ports", "ports that are equal"],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_packets_of_shared_paths_have_the_lines_of_each_packet(trails: list[Trail], terminal: bool) -> None:
    packets, assembler = assembled([rows_of(*trails)], True)
    assert assembler.shared == len(trails) - 1
    made = [evolve(packet, hops=tuple(packet.hops)) for packet in packets]
    assert shared_hops(packets[-1]) and not shared_hops(made[-1])
    outs = [Terminal() if terminal else io.StringIO() for _ in range(2)]
    assert lines(*packets, out=outs[0]) == lines(*made, out=outs[1])


def test_a_terminal_gets_whole_lines_with_colours() -> None:
    (line,) = lines(with_rule(samples.node_port()), out=Terminal())
    assert "\x1b[" in line and len(line) > 200


def test_a_finding_is_a_line_and_a_block_at_the_end() -> None:
    proofs = (FindingEvidence("rule", "INPUT 1", "observed"),)
    finding = Finding("dropped_by_rule", ("k",), "A rule drops packets.", proofs, "Look.", "Mend.", last=samples.EPOCH)
    output = OneLineOutput(out := io.StringIO(), io.StringIO())
    output.finding(finding)
    output.finding(replace(finding, certain=False, packets=0))
    assert out.getvalue().splitlines() == [
        "-  finding dropped_by_rule of 14:03:22.118  A rule drops packets.",
        "-  finding dropped_by_rule (not certain)  A rule drops packets.",
    ]
    output.summary(RunSummary(packets=2, outcomes={"dropped": 2}, findings=[finding]))
    assert {"Look.", "Mend."} <= {word for line in out.getvalue().splitlines() for word in line.split()}


def test_the_option_is_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def read(paths: object, options: dict[str, list[OutputSpec]]) -> int:
        seen.append([spec.name for spec in options["outputs"]])
        return 0

    monkeypatch.setattr("tracer.commands.read.read", read)
    for words in (["--oneline"], ["--oneline", "-o", "json:x"], ["-o", "oneline"]):
        with pytest.raises(SystemExit):
            main.main(["-r", "x.k8st", *words])
    assert seen == [["oneline"], ["oneline", "json:x"], ["oneline"]]
