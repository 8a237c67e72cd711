# SPDX-License-Identifier: Apache-2.0
"""The aliases of packets on shared paths are those of the same packets that were explained on their own."""

from __future__ import annotations

import pytest

from tests.support.builders import POD, Trail
from tests.support.shared_paths import assembled, delivered, forwarded, rows_of
from tests.unit.packets.test_path_templates import answer
from tracer.model.connection import reverse
from tracer.packets.aliases import Aliases, aliases_of
from tracer.packets.shared_path import shared_hops

SCENES = {
    "delivered": [delivered(n, 40000 + n) for n in range(1, 5)],
    "translated, same port": [forwarded(n, 40000 + n) for n in range(1, 5)],
    "masqueraded": [forwarded(n, 40000 + n, 20000 + n) for n in range(1, 5)],
    "answers": [answer(n, 40000 + n) for n in range(1, 5)],
    "in another namespace": [forwarded(n, 40000 + n).hook("INPUT", netns=POD) for n in range(1, 5)],
}


@pytest.mark.parametrize("scene", SCENES)
def test_aliases_of_shared_paths(scene: str) -> None:
    trails: list[Trail] = SCENES[scene]
    shared, own = assembled([rows_of(*trails)], True)[0], assembled([rows_of(*trails)], False)[0]
    aliases = Aliases()
    assert sum(shared_hops(packet) is not None for packet in shared) == len(trails) - 1
    for a, b in zip(shared, own, strict=True):
        assert list(aliases.of(a)) == list(aliases_of(b)), "the same, in the same order"
        assert aliases.ends(a) == aliases.ends(b) != {reverse(alias) for alias in aliases.ends(b)}
