# SPDX-License-Identifier: Apache-2.0
"""Packets that were freed at a queue (NFQUEUE): by what the queue did with them."""

from __future__ import annotations

import pytest

from tests.support import findings as f
from tracer.model.endpoints import Endpoints
from tracer.model.hop import (
    QUEUE_ANSWER,
    QUEUE_REFUSED,
    ChainHop,
    DecisionDetail,
    DetailHop,
    Drop,
    DropHop,
    HookHop,
    Hop,
)
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome
from tracer.packets import queue_drops
from tracer.packets.outcome import classify
from tracer.packets.queue_details import ENDED, PROCESS, format_detail
from tracer.packets.queue_drops import queue_drop

ENDS = Endpoints("10.0.0.2", 40000, "10.0.0.1", 8080)
QUEUED = ChainHop(0, HOST, Hook.FORWARD, table="ip inspector", chain="c", verdict=Verdict.QUEUE)
STOLEN = HookHop(0, HOST, Hook.FORWARD, verdict=Verdict.STOLEN)


def answer(verdict: str = "ACCEPT", by: str = PROCESS, netns: Netns = HOST) -> DetailHop:
    facts: dict[str, int | str] = {"queue": 7, "verdict": verdict, "by": by, "pid": 9, "process": "ids", "waited_ns": 2_500_000}
    return DetailHop(0, netns, detail=DecisionDetail(QUEUE_ANSWER, facts))


def refusal(by: str) -> DetailHop:
    return DetailHop(0, HOST, detail=DecisionDetail(QUEUE_REFUSED, {"queue": 7, "errno": 105, "by": by}))


def freed(function: str = "nfqnl_reinject", reason: str = "NOT_SPECIFIED") -> DropHop:
    return DropHop(0, HOST, verdict=Verdict.DROP, drop=Drop(reason, function))


def cause(*hops: Hop) -> str | None:
    """The cause of the last hop, a drop; None = not a drop at a queue."""
    assert isinstance(hops[-1], DropHop)
    found = queue_drop(hops, hops[-1])
    return found.cause if found else None


@pytest.mark.parametrize(
    ("hops", "expected"),
    [
        ((QUEUED, STOLEN, freed()), queue_drops.UNKNOWN),
        ((QUEUED, STOLEN, freed("nfqnl_reinject.isra.0")), queue_drops.UNKNOWN),
        ((QUEUED, STOLEN, answer("DROP"), freed()), PROCESS),
        ((QUEUED, answer("DROP"), STOLEN, freed()), PROCESS),
        ((QUEUED, STOLEN, answer("DROP", ENDED), freed("nf_reinject", "")), ENDED),
        ((QUEUED, STOLEN, answer("DROP", ""), freed()), queue_drops.UNKNOWN),
        ((QUEUED, STOLEN, answer(), freed()), queue_drops.LATER_FUNCTION),
        ((QUEUED, STOLEN, answer("REPEAT"), QUEUED, freed()), queue_drops.UNKNOWN),
        ((QUEUED, answer("DROP", netns=Netns("pod-a")), STOLEN, freed()), queue_drops.UNKNOWN),
        ((QUEUED, refusal("queue full"), freed("nf_queue")), "queue full"),
        ((QUEUED, refusal(""), freed("nf_queue")), queue_drops.OTHER_ERROR),
        ((QUEUED, freed("nf_queue")), None),
        ((QUEUED, refusal("queue full"), freed("nfqnl_reinject")), None),
        ((QUEUED, STOLEN, answer("DROP"), freed(reason="NETFILTER_DROP")), None),
        ((STOLEN, freed("kfree")), None),
        ((QUEUED, freed("nfqnl_enqueue_packet")), queue_drops.SEGMENTED),
        ((freed("nfqnl_enqueue_packet"),), None),
    ],
)
def test_causes(hops: tuple[Hop, ...], expected: str | None) -> None:
    assert cause(*hops) == expected


def test_a_later_function_is_named_with_the_hook() -> None:
    verdict, outcome = classify(f.packet([QUEUED, STOLEN, answer(), freed()], ENDS))
    assert outcome is Outcome.DROPPED
    assert verdict == "DROPPED in FORWARD after queue 7 (NFQUEUE), which let it pass: by a later function of the hook"


def test_segments_are_in_the_queue() -> None:
    made = classify(f.packet([QUEUED, freed("nfqnl_enqueue_packet")], ENDS))
    assert made == ("taken over in FORWARD: queued in segments", Outcome.STOLEN)


@pytest.mark.parametrize(
    ("hop", "text"),
    [
        (answer("REPEAT"), "pid 9 ids answered REPEAT after 2.50 ms"),
        (answer("DROP", ENDED), "emptied by the kernel after 2.50 ms: its process ended or let go of it"),
        (answer("DROP", ""), "given back with DROP after 2.50 ms, by whom is not known"),
        (answer("ACCEPT", "queue full"), "full: let pass without an answer (fail-open)"),
        (refusal("no process"), "no process listens"),
        (refusal("receive buffer full"), "the receive buffer of its process is full"),
        (refusal(""), "does not take it: ENOBUFS"),
    ],
)
def test_texts(hop: DetailHop, text: str) -> None:
    assert format_detail(hop.detail) == text
