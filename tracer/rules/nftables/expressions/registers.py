# SPDX-License-Identifier: Apache-2.0
"""The registers of a rule: the kernel's steps load values into them, change the values and compare them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracer.rules.nftables.data_types import NUMBER
from tracer.util.json_value import Json, JsonObject

SLOTS = 16
"""Number of registers of 4 bytes."""
VERDICT_REGISTER = 0
"""NFT_REG_VERDICT."""


def unknown(what: str) -> JsonObject:
    """A value or an expression that could not be decoded."""
    return {"unknown": what}


def has_unknown(expressions: Iterable[Json]) -> bool:
    """Whether something in the expressions could not be decoded."""
    pending: list[Json] = list(expressions)
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if "unknown" in each:
                return True
            pending += each.values()
        elif isinstance(each, list):
            pending += each
    return False


@dataclass(frozen=True)
class Loaded:
    """What was loaded into a register.

    Attributes:
        json: As nft writes it.
        kind: Its type.
        size: Its size, bytes.
        raw: Its bytes, if it is a constant.
        fields: (text, type, size) of each field where several header fields that follow each other were loaded at once.
        whole: Size of the field of which only the beginning was loaded, 0 = all of it.
        mask: The bits that a mask has left, None = all.
        masked: What was masked.
        layer: The layer of a header field ("nh", "th"), "" = none.
    """

    json: Json
    kind: int
    size: int
    raw: bytes | None = None
    fields: tuple[tuple[Json, int, int], ...] = ()
    whole: int = 0
    mask: bytes | None = None
    masked: Loaded | None = None
    layer: str = ""


class Registers:
    """What the registers hold. A number of a register is the kernel's (NFT_REG_*)."""

    def __init__(self) -> None:
        self._slots: dict[int, Loaded] = {}

    def forget(self) -> None:
        """Makes all registers unknown: an expression of unknown meaning may have changed any."""
        self._slots = {slot: Loaded(unknown("register"), NUMBER, 4) for slot in range(SLOTS)}

    def store(self, register: int, loaded: Loaded) -> bool:
        """Puts a value into a register and those after it. False = there are no such registers."""
        first = slot_of(register)
        if not 0 <= first < SLOTS or not 0 <= loaded.size <= 4 * SLOTS:
            return False
        for slot in range(first, first + max(1, (loaded.size + 3) // 4)):
            self._slots.pop(slot, None)
        # What began before and reaches into this register is overwritten in part.
        for slot, before in list(self._slots.items()):
            if slot < first < slot + (before.size + 3) // 4:
                del self._slots[slot]
        self._slots[first] = loaded
        return True

    def at(self, register: int) -> Loaded:
        """The value that begins in a register."""
        return self._slots.get(slot_of(register)) or Loaded(unknown("register"), NUMBER, 4)

    def span(self, register: int, size: int) -> list[Loaded]:
        """What the registers hold from this one on, for `size` bytes; [] if that is not known."""
        if size > 4 * SLOTS:
            return []
        found, slot, end = list[Loaded](), slot_of(register), slot_of(register) + (size + 3) // 4
        while slot < end:
            loaded = self._slots.get(slot)
            if loaded is None:
                return []
            if loaded.fields:
                found += [Loaded(json, kind, length, layer=loaded.layer) for json, kind, length in loaded.fields]
            else:
                found.append(loaded)
            slot += max(1, (loaded.size + 3) // 4)
        return found

    def is_inside(self, register: int, loaded: Loaded) -> bool:
        """Whether a register is a part of this value, as those of a map's value are."""
        first = next((slot for slot, each in self._slots.items() if each is loaded), -1)
        return first < slot_of(register) < first + (loaded.size + 3) // 4


def slot_of(register: int) -> int:
    """The first of the 4-byte registers: four names for 16 bytes each (1-4), or one for each (8-23)."""
    return (register - 1) * 4 if register < 8 else register - 8


def json_of(loaded: Loaded) -> Json:
    """A value as nft writes it; a part of a field has no text."""
    return unknown("part of a field") if loaded.whole else loaded.json
