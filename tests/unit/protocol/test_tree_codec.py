# SPDX-License-Identifier: Apache-2.0
"""Trees of the model's classes: what is sent arrives, and a hostile tree is one clear error."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import sample_findings, sample_packets
from tracer.model.check import CheckResult
from tracer.model.connection import ConnectionKey
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.hop import DropHop, HookHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, UnknownVerdict
from tracer.model.packet import Outcome, Packet
from tracer.model.summary import OutputLoss, RunSummary
from tracer.model.timeline import PathStep, Timeline, TimelineEntry
from tracer.protocol.limits import MOST_DEPTH, MOST_ITEMS, MOST_TEXT
from tracer.protocol.malformed_frame import MalformedFrame
from tracer.protocol.messages import Begin, Hello
from tracer.protocol.tree_codec import CLASS, CLASSES, Decoded, Leaf, Tree, decode, encode, flatten, from_bytes, to_bytes


def there_and_back(value: object) -> object:
    return decode(from_bytes(to_bytes(encode(value))), type(value))


def plain(packet: Packet) -> Packet:
    return replace(packet, hops=tuple(packet.hops))


@pytest.mark.parametrize("packet", sample_packets.every(), ids=lambda packet: packet.verdict[:30])
def test_packets_arrive_as_they_were(packet: Packet) -> None:
    assert there_and_back(packet) == plain(packet)


def test_results_arrive_as_they_were() -> None:
    packet = plain(sample_packets.node_port())
    ends = Endpoints("10.0.0.1", 1, "10.0.0.2", 2)
    verdict = HandshakeVerdict(1, 2, ends, ends, HOST, Cause("accepted", "by x", Evidence.DERIVED, True), 1, 3)
    timeline = Timeline(
        ConnectionKey("TCP", ends), 1, 2, ends, [TimelineEntry(1, "packet", "x", stages=(PathStep(1, HOST, "y"),))]
    )
    finding = Finding(
        "mtu", ("a", 1, ("b", None)), "too large", (FindingEvidence("route", "r", "observed"),), "c", "d", numbers=(1, 2)
    )
    summary = RunSummary(3, outcomes={"sent": 3}, findings=[finding], not_written=[OutputLoss("json", 1, "slow")])
    summary.differences.append(CounterMismatch(HOST, "TcpExtListenDrops", 2, 1))
    for value in (
        verdict,
        timeline,
        finding,
        sample_findings.FOUND,
        summary,
        Begin((CheckResult("kernel", "degraded", "old", 1),), "--port 1", "6.1"),
    ):
        assert there_and_back(value) == value
    attempt = ConnectionAttempt(packet, 5, again=1, acks=[packet])
    arrived = there_and_back(replace(verdict, attempt=attempt))
    assert isinstance(arrived, HandshakeVerdict) and arrived.attempt == replace(attempt, acks=[])


def test_long_texts_are_cut_off_and_long_lists_refused() -> None:
    long = replace(sample_findings.FOUND, cause="x" * (MOST_TEXT + 9))
    found = there_and_back(long)
    assert isinstance(found, Finding) and len(found.cause) == MOST_TEXT and found.cause.endswith("x...")
    with pytest.raises(ValueError, match="a list of"):
        encode(replace(long, numbers=tuple(range(MOST_ITEMS + 1))))


def test_every_class_names_fields_that_can_be_decoded() -> None:
    for cls in CLASSES.values():
        assert is_dataclass(cls) and fields(cls)
        with pytest.raises(MalformedFrame):
            decode({CLASS: cls.__name__, fields(cls)[0].name: {"no": "such"}}, cls)


def test_fields_of_a_newer_peer_are_ignored_and_those_of_an_older_one_have_defaults() -> None:
    tree = encode(plain(sample_packets.node_port()))
    assert isinstance(tree, dict)
    newer: Tree = {**tree, "color": {"$": "Color", "of": ["x", 1]}, "more": [[], {}]}
    assert decode(newer, Packet) == plain(sample_packets.node_port())
    older = {key: value for key, value in tree.items() if key not in ("iface", "family", "identity", "time")}
    found = decode(older, Packet)
    assert isinstance(found, Packet) and (found.iface, found.family, found.identity, found.time) == ("", "", 0, 0)
    with pytest.raises(MalformedFrame, match="a Packet without endpoints"):
        decode({key: value for key, value in tree.items() if key != "endpoints"}, Packet)


def test_a_hop_of_a_newer_kind_is_left_out_and_proves_nothing() -> None:
    packet = plain(sample_packets.node_port())
    tree = encode(packet)
    assert isinstance(tree, dict) and isinstance(tree["hops"], list)
    tree["hops"].insert(1, {CLASS: "XdpHop", "time": 5, "program": "x"})
    decoded = Decoded(tree, Packet)
    assert isinstance(decoded.value, Packet)
    assert decoded.value.hops == packet.hops and not decoded.value.complete
    leaves, _ = flatten(tree)
    number = next(place for place, leaf in enumerate(leaves) if leaf == packet.hops[-1].time and place > 10)
    changed = decoded.with_leaves({number: 77})
    assert isinstance(changed, Packet) and 77 in [hop.time for hop in changed.hops] and not changed.complete


def test_words_of_a_newer_peer_promise_nothing() -> None:
    hop = HookHop(1, HOST, Hook.INPUT, verdict=UnknownVerdict("LATER"))
    assert there_and_back(hop) == hop
    packet = decode({**_tree(sample_packets.ping()), "outcome": "teleported"}, Packet)
    assert isinstance(packet, Packet) and packet.outcome is Outcome.UNKNOWN
    drop = decode({CLASS: "HookHop", "time": 1, "netns": "node", "hook": "SIDEWAYS", "evidence": "heard"}, HookHop)
    assert isinstance(drop, HookHop) and drop.hook is Hook.NONE and drop.evidence is Evidence.DERIVED
    found = decode({CLASS: "CheckResult", "subject": "x", "state": "unsure", "text": ""}, CheckResult)
    assert isinstance(found, CheckResult) and found.state == "missing"


def _tree(packet: Packet) -> dict[str, Tree]:
    tree = encode(packet)
    assert isinstance(tree, dict)
    return tree


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"NaN", "not valid JSON"),
        (b"[" * 5000, "nested too deep|not valid JSON"),
        (json.dumps([[]] * (MOST_ITEMS + 1)).encode(), "too long"),
        (json.dumps("x" * (MOST_TEXT + 1)).encode(), "too long"),
        (b"1" + b"0" * 30, "too large"),
        (b"1e400", "too large|not valid JSON"),
        (json.dumps([[0] * 10_000] * 4).encode(), "too many values"),
    ],
)
def test_bounds(body: bytes, why: str) -> None:
    with pytest.raises(MalformedFrame, match=why):
        from_bytes(body)


def test_depth() -> None:
    tree: Tree = []
    for _ in range(MOST_DEPTH + 1):
        tree = [tree]
    with pytest.raises(MalformedFrame, match="too deep"):
        from_bytes(to_bytes(tree))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time", "soon"), ("time", True), ("time", 1.5), ("netns", 3), ("endpoints", None), ("endpoints", []), ("hops", 3),
        ("hops", [3]), ("hops", [{CLASS: "Owner"}]), ("hops", [{}]), ("hops", [{CLASS: ["x"]}]), ("icmp", [1]),
        ("icmp", [1, "2"]), ("raw", "xyz"), ("raw", 3), ("flow", {CLASS: "Packet"}), ("complete", 1), ("outcome", 5),
        ("src_owner", "me"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(name: str, value: Tree) -> None:
    with pytest.raises(MalformedFrame):
        decode({**_tree(sample_packets.node_port()), name: value}, Packet)


LEAVES = (
    st.none() | st.booleans() | st.integers(-(1 << 64) + 1, (1 << 64) - 1) | st.text(max_size=8) | st.floats(allow_nan=False)
)
WORDS = st.sampled_from([CLASS, "time", "hops", "endpoints", "netns", "facts", "x", *list(CLASSES)[:12]])
TREES = st.recursive(
    LEAVES | st.sampled_from(list(CLASSES)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6),
)


@settings(max_examples=300, deadline=None)
@given(TREES, st.sampled_from([Packet, Finding, Hello, RunSummary, DropHop]))
def test_any_tree_is_decoded_or_refused(tree: Tree, cls: type) -> None:
    try:
        found = decode(from_bytes(json.dumps(tree).encode()), cls)
    except MalformedFrame:
        return
    assert type(found) is cls


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_changed_leaves_give_what_a_new_tree_gives(data: st.DataObject) -> None:
    packet = data.draw(st.sampled_from(sample_packets.every()))
    tree = _tree(plain(packet))
    leaves, _ = flatten(tree)
    places = data.draw(st.lists(st.integers(0, len(leaves) - 1), unique=True, max_size=8))
    changes: dict[int, Leaf] = {place: data.draw(_like(leaves[place])) for place in places}
    template = Decoded(tree, Packet)
    assert template.with_leaves(changes) == decode(_with(tree, changes), Packet)
    assert template.value == plain(packet)


def _like(leaf: Leaf) -> st.SearchStrategy[Leaf]:
    if isinstance(leaf, bool) or leaf is None:
        return st.just(leaf)
    return st.integers(0, 1 << 40) if isinstance(leaf, int) else st.just(leaf)


def _with(tree: Tree, changes: dict[int, Leaf]) -> Tree:
    """The tree with other leaves."""
    numbers = iter(range(1 << 20))

    def walk(part: Tree) -> Tree:
        if isinstance(part, dict):
            return {key: inner if key == CLASS else walk(inner) for key, inner in part.items()}
        if isinstance(part, list):
            return [walk(inner) for inner in part]
        number = next(numbers)
        return changes.get(number, part)

    return walk(tree)
