# SPDX-License-Identifier: Apache-2.0
"""Stored slots, and events of a program with another record layout."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support import captures
from tracer.capture.format import record_layout
from tracer.capture.format.codec import MalformedRecord
from tracer.capture.format.record_layout import RecordLayout
from tracer.events import record
from tracer.events.detail_row import DETAIL_DTYPE, DetailKind
from tracer.events.record import Kind


def events() -> Any:
    return np.concatenate([captures.table_lookup(5), captures.request(1, 10), captures.refused(2, 20)])


def described() -> Any:
    return json.loads(json.dumps(record_layout.describe()))


def test_stored_slots_are_read_back() -> None:
    slots = captures.slots(events())
    of = RecordLayout(described())
    for level in (0, 1):
        assert (of.unpack(record_layout.pack(slots, level), len(slots)) == slots).all()
    assert (of.events(slots) == record.unpack(slots)).all()
    assert record_layout.count(slots) == len(events()) == 1 + record_layout.count_packet_events(slots), (
        "the look-up of a table belongs to no packet"
    )
    assert record_layout.count_packet_events(slots[:0]) == 0


def test_events_of_another_layout_are_read_by_field_name() -> None:
    """In the other layout two fields of one size change places, one field is missing, and a kind has another number."""
    other = described()
    fields = other["records"]["event"]
    by_name = {f[0]: f for f in fields}
    by_name["mark"][3], by_name["reason"][3] = by_name["reason"][3], by_name["mark"][3]
    fields.remove(by_name["ident"])
    other["kinds"]["EVENT_DROP"], other["kinds"]["EVENT_SYN"] = other["kinds"]["EVENT_SYN"], other["kinds"]["EVENT_DROP"]
    batch = events()
    for row in batch:
        if row["kind"] in (Kind.EVENT_HOOK, Kind.EVENT_DROP, Kind.EVENT_TABLE):
            row["mark"], row["reason"], row["ident"] = 7, 6, 99
    found = RecordLayout(other).events(captures.slots(batch))
    hooks = found["kind"] == Kind.EVENT_HOOK
    assert hooks.any() and (found["mark"][hooks] == 6).all() and (found["reason"][hooks] == 7).all()
    assert not found["ident"].any()
    assert (found["kind"] == Kind.EVENT_SYN).sum() == (batch["kind"] == Kind.EVENT_DROP).sum()
    assert (found["time"] == batch["time"]).all() and (found["src"] == batch["src"]).all()


def test_an_unknown_kind_is_left_out() -> None:
    other = described()
    other["kinds"]["EVENT_NEW"] = other["kinds"].pop("EVENT_HOOK")
    found = RecordLayout(other).events(captures.slots(events()))
    assert len(found) == (events()["kind"] != Kind.EVENT_HOOK).sum()


@pytest.mark.parametrize("kind", [0, 255])
def test_an_unknown_kind_of_decision_detail_is_left_out(kind: int) -> None:
    batch = events()
    octets = batch.view(np.uint8).reshape(len(batch), batch.itemsize)
    for place, what in ((0, kind), (1, int(DetailKind.DETAIL_LISTENER))):
        batch["kind"][place] = Kind.EVENT_CLUE
        octets[place, record_layout.field_offset(DETAIL_DTYPE, "what")] = what
    layout = RecordLayout(described())
    assert len(layout.events(captures.slots(batch))) == len(batch) - 1 and layout.unknown == 1


def test_rulesets_are_found_among_slots() -> None:
    slots = captures.slots(events())
    assert len(record_layout.ruleset_slots(slots)) == 1 and not len(record_layout.ruleset_slots(slots[1:]))


@pytest.mark.parametrize(
    "change", [{"slot": 3}, {"slot": "x"}, {"records": {}}, {"kinds": None}, {"records": {"event": [["a", "O", 0, 0]]}}]
)
def test_impossible_layouts_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedRecord):
        RecordLayout(described() | change)


@pytest.mark.parametrize(
    ("stored", "count"), [(b"", 1), (None, 0), (record_layout.pack(np.zeros((3, record_layout.SLOT), np.uint8)), 2), (b"x", -1)]
)
def test_batches_with_a_wrong_count_are_refused(stored: Any, count: int) -> None:
    with pytest.raises(MalformedRecord):
        RecordLayout(described()).unpack(stored, count)


def test_a_whole_event_without_its_end_is_left_out() -> None:
    slots = captures.slots(captures.request(1, 10))
    assert len(RecordLayout(described()).events(slots[:-1])) == len(captures.request(1, 10)) - 1


@pytest.mark.parametrize("damage", ["none", "an unknown kind", "a cut event"])
def test_batches_are_decoded_at_once_as_alone(damage: str) -> None:
    """An event that is cut off ends its own batch, and takes nothing of the next one."""
    batches = [captures.slots(each) for each in (events(), events()[:0], captures.request(3, 30), captures.refused(4, 40))]
    if damage == "an unknown kind":
        batches[2][0, 8 + record_layout.field_offset(record.DTYPE, "kind")] = 99
    if damage == "a cut event":
        batches[2] = batches[2][:-1]
    at_once, alone = RecordLayout(described()), RecordLayout(described())
    found = at_once.batches(np.concatenate(batches), list(map(len, batches)))
    assert [each.tobytes() for each in found] == [alone.events(each).tobytes() for each in batches]
    assert at_once.unknown == alone.unknown == (damage == "an unknown kind")
    assert at_once.batches(batches[1], []) == [] and [len(each) for each in at_once.batches(batches[1], [0, 0])] == [0, 0]
