# SPDX-License-Identifier: Apache-2.0
"""A hop with other values in it, as dataclasses make it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_packets
from tracer.model.evidence import Evidence
from tracer.model.packet import Hop
from tracer.util.frozen import evolve


@pytest.mark.parametrize("hop", [h for p in sample_packets.every() for h in p.hops], ids=lambda h: f"{h.what} {h.hook}")
def test_a_changed_one_is_what_replace_makes_and_the_old_one_stays(hop: Hop) -> None:
    before = replace(hop)
    assert evolve(hop, evidence=Evidence.DERIVED, mark=7) == replace(hop, evidence=Evidence.DERIVED, mark=7)
    assert hop == before and type(evolve(hop)) is Hop and evolve(hop) == hop is not evolve(hop)
