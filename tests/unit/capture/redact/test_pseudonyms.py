# SPDX-License-Identifier: Apache-2.0
"""Redaction: no address or name is left, an address always gets the same pseudonym, and common prefixes stay common."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import captures, sample_packets, syns
from tracer.capture.redact import pseudonyms
from tracer.capture.redact.pseudonyms import Pseudonymizer
from tracer.errors import OutputNotWritten
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.hop import QUEUE_ANSWER, DecisionDetail, DetailHop, Hop
from tracer.model.kube import Owner
from tracer.model.namespace_name import HOST, Netns
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary

KEY = b"k" * 32


def common(a: str, b: str) -> int:
    """Length of the common prefix of two addresses, bits."""
    one, two = ipaddress.ip_address(a), ipaddress.ip_address(b)
    return one.max_prefixlen - (int(one) ^ int(two)).bit_length()


v4 = st.ip_addresses(v=4).map(str)


@given(v4, v4)
def test_networks_stay_networks(a: str, b: str) -> None:
    redaction = Pseudonymizer(KEY)
    new = redaction(a), redaction(b)
    plain = [ipaddress.ip_address(x) for x in (a, b)]
    if not any(x.is_loopback or x.is_multicast or x.is_unspecified or x.is_link_local for x in plain):
        assert common(*new) == common(a, b) or common(a, b) < 8


def test_the_name_of_a_process_that_answers_for_a_queue_is_replaced() -> None:
    facts: dict[str, int | str] = {"queue": 41, "verdict": "DROP", "by": "process", "pid": 219, "process": "shop-filter"}
    hop = DetailHop(0, HOST, detail=DecisionDetail(QUEUE_ANSWER, facts))
    packet = sample_packets.with_hops(sample_packets.ping(), hop)
    made = Pseudonymizer(KEY).packet(replace(packet, verdict="DROPPED behind queue 41: pid 219 shop-filter answered DROP"))
    assert "shop-filter" not in repr(made) and "answered DROP" in made.verdict
    assert isinstance(found := made.hops[-1], DetailHop) and found.detail.number("pid") == 219


@pytest.mark.parametrize("kept", ["127.0.0.1", "0.0.0.0", "224.0.0.1", "169.254.1.1", "::1", "fe80::1", "ff02::1"])
def test_special_addresses_stay(kept: str) -> None:
    assert Pseudonymizer(KEY)(f"-d {kept} -j DROP") == f"-d {kept} -j DROP"


def test_a_rule_keeps_its_form() -> None:
    text = (
        '-d 10.96.0.10/32 -p tcp -m comment --comment "kube-system/kube-dns:dns" -m tcp --dport 53 -j KUBE-SVC-TCOU7JCQXEZGVUNU'
    )
    redacted = Pseudonymizer(KEY)(text)
    assert "10.96.0.10" not in redacted and "kube-dns" not in redacted and "TCOU7JCQXEZGVUNU" not in redacted
    assert (
        redacted.startswith("-d 10.")
        and "/32 -p tcp -m comment --comment" in redacted
        and "--dport 53 -j KUBE-SVC-" in redacted
    )
    assert len(redacted.rpartition("-")[2]) == 16


@pytest.mark.parametrize(
    "text", ["{}:53", "[{}]:53", "{}/24", "-s {}", "{}, and", "to-source {}-{}", "({})", "at {}.", "key{{{} . 80}}"]
)
@pytest.mark.parametrize("address", ["192.0.2.77", "2001:db8::77"])
def test_addresses_at_any_place_of_a_text(text: str, address: str) -> None:
    line = text.format(address, address)
    assert address not in Pseudonymizer(KEY)(line), line


def test_a_node_that_is_named_after_its_address() -> None:
    assert "188" not in Pseudonymizer(b"1" * 32)("node ip-10-188-166-140.ec2.internal").replace("node-", "")


def test_the_same_key_gives_the_same_pseudonyms() -> None:
    text = "192.168.56.10 shop/cart"
    assert Pseudonymizer(KEY)(text) == Pseudonymizer(KEY)(text) != Pseudonymizer()(text)


def everything(packet: Packet) -> str:
    from tracer.render.parts.json_packet import packet_object

    return str(packet_object(packet))


@pytest.mark.parametrize("packet", sample_packets.every(), ids=lambda p: p.outcome)
def test_no_packet_keeps_an_address(packet: Packet) -> None:
    packet = replace(packet, src_owner=Owner("Pod", "shop", "cart-x7k2p", detail="on worker-17"))
    ends = {packet.endpoints.src, packet.endpoints.dst}
    text = everything(Pseudonymizer(KEY).packet(packet))
    assert not any(f"'{end}'" in text or f" {end}" in text for end in ends if not end.startswith("127."))
    assert "cart-x7k2p" not in text and "shop" not in text
    assert packet.verdict.partition(" ")[0] in text


class FilledIn(Sequence[Hop]):
    """Hops that are no tuple and no list, as those of a packet on a shared path."""

    def __init__(self, hops: Sequence[Hop]) -> None:
        self._hops = tuple(hops)

    @overload
    def __getitem__(self, at: int) -> Hop: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Hop]: ...
    def __getitem__(self, at: int | slice) -> Hop | Sequence[Hop]:
        return self._hops[at]

    def __len__(self) -> int:
        return len(self._hops)


def test_hops_of_a_shared_path_are_redacted() -> None:
    packet = sample_packets.node_port()
    filled_in = replace(packet, hops=FilledIn(packet.hops))
    assert everything(Pseudonymizer(KEY).packet(filled_in)) == everything(Pseudonymizer(KEY).packet(packet))


def test_facts_of_a_decision_and_counters_are_redacted() -> None:
    redaction = Pseudonymizer(KEY)
    detail = redaction.redact(DecisionDetail("reset", {"src": "192.168.56.1", "sport": 80}))
    assert detail.facts == {"src": redaction("192.168.56.1"), "sport": 80} and detail.facts["src"] != "192.168.56.1"
    redaction._learn("web-a")
    summary = redaction.summary(RunSummary(differences=[CounterMismatch(Netns("web-a"), "ListenDrops", 2, 1)]))
    assert summary.differences == [CounterMismatch(Netns(redaction("web-a")), "ListenDrops", 2, 1)]
    assert redaction("web-a") != "web-a"


def test_a_verdict_of_a_syn_is_redacted_once() -> None:
    redaction = Pseudonymizer(KEY)
    (verdict,) = syns.verdicts(syns.syn(*syns.at_listener(True)), syns.synack(), syns.last_ack())
    redacted = redaction.syn(verdict)
    assert redacted.asked.src == redaction(verdict.asked.src) != verdict.asked.src
    assert redacted.attempt and verdict.attempt
    assert redacted.attempt.syn.endpoints == redacted.asked and "nginx" not in redacted.attempt.process
    assert redaction.syn(replace(verdict, attempt=None)).attempt is None


def test_a_capture_exported_and_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tracer.cli import main

    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    path = captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path
    target = tmp_path / "out.jsonl"
    with pytest.raises(SystemExit) as e:
        main.main(["export", str(path), "--to", "jsonl", "--redact", str(target)])
    assert not e.value.code, capsys.readouterr().err
    text = target.read_text()
    for word in ("192.168.56.", "10.244.0.", "http-proxy", "nginx", "node-1", "pod-a"):
        assert word not in text, word
    assert text.count('"type":"packet"') == 20


def test_a_pseudonym_stays_the_same_after_its_eviction() -> None:
    redaction = Pseudonymizer(KEY)
    before = redaction("10.1.2.3"), redaction.name("pod", "web-a")
    redaction._address.cache_clear()
    redaction._text.cache_clear()
    assert (redaction("10.1.2.3"), redaction.name("pod", "web-a")) == before


def test_no_name_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten name would be shown in a later text. So an export with too many names ends."""
    monkeypatch.setattr(pseudonyms, "MAX_NAMES", 20)
    redaction = Pseudonymizer(KEY)
    for n in range(20):
        redaction._learn(f"name-{n}")
    assert all(f"name-{n} " not in redaction(f"this is name-{n} here") for n in range(20))
    redaction._learn("name-0")
    with pytest.raises(OutputNotWritten, match="more than 20 different names"):
        redaction._learn("one-more")
