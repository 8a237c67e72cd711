# SPDX-License-Identifier: Apache-2.0
"""evolve(): a changed copy of a frozen dataclass."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from tests.support import sample_packets
from tracer.model.evidence import Evidence
from tracer.model.hop import Hop
from tracer.model.packet import Packet
from tracer.util.frozen import evolve


@pytest.mark.parametrize("hop", [h for p in sample_packets.every() for h in p.hops], ids=lambda h: f"{h.kind} {h.hook}")
def test_evolve_is_equal_to_replace_and_does_not_change_the_original(hop: Hop) -> None:
    before = replace(hop)
    assert evolve(hop, evidence=Evidence.DERIVED, mark=7) == replace(hop, evidence=Evidence.DERIVED, mark=7)
    assert hop == before and type(evolve(hop)) is type(hop) and evolve(hop) == hop is not evolve(hop)


@pytest.mark.parametrize("packet", sample_packets.every(), ids=lambda p: p.outcome)
def test_evolve_copies_classes_with_slots(packet: Packet) -> None:
    before = replace(packet)
    assert evolve(packet, number=70, hops=()) == replace(packet, number=70, hops=())
    assert packet == before and evolve(packet) == packet is not evolve(packet)
    with pytest.raises(KeyError):
        evolve(packet, absent=1)
    with pytest.raises(FrozenInstanceError):
        packet.number = 3  # type: ignore[misc]
