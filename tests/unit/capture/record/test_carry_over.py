# SPDX-License-Identifier: Apache-2.0
"""What each further file of a run begins with has a limit, however long the run is."""

from __future__ import annotations

import pytest

from tracer.capture.format.codec import pack
from tracer.capture.format.schema import Record
from tracer.capture.record import carry_over
from tracer.capture.record.carry_over import CarryOver


@pytest.mark.parametrize("with_old_reading", [False, True])
def test_replaced_tables_are_bounded(with_old_reading: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when no table was read, or one was read at the start and never replaced."""
    monkeypatch.setattr(carry_over, "MAX_RULESETS", 10)
    carried = CarryOver()
    if with_old_reading:
        carried.feed((1, Record.READING, "1 ip filter", pack([])))
    for turn in range(2, 500):
        carried.feed((turn, Record.RULESET, "", pack({})))
    assert [r[0] for r in carried.records() if r[1] == Record.RULESET] == list(range(490, 500))
    assert carried._rulesets.evicted == 488


def test_readings_and_filters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry_over, "MAX_READINGS", 3)
    monkeypatch.setattr(carry_over, "MAX_FILTERS", 2)
    carried = CarryOver()
    for turn in range(10):
        carried.feed((turn, Record.NFT, f"7 {turn}", pack([])))
        carried.feed((turn, Record.FILTER, "", pack([])))
    kept = carried.records()
    assert [r[0] for r in kept if r[1] == Record.NFT] == [7, 8, 9]
    assert len([r for r in kept if r[1] == Record.FILTER]) == carry_over.MAX_FILTERS


def test_objects_that_come_and_go_leave_nothing() -> None:
    carried = CarryOver()
    for n in range(100):
        body = {"kind": "Service", "metadata": {"namespace": "shop", "name": f"s{n}"}}
        for what in ("apply", "delete"):
            carried.feed((n, Record.OBJECTS, "", pack([what, "Service", [body]])))
    assert not carried._objects["Service"] and not carried.records()
