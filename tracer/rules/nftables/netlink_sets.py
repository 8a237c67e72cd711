# SPDX-License-Identifier: Apache-2.0
"""Sets and maps from netlink, as `nft -j` lists them: their definition, and their elements from the kernel's messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tracer.node.nfnetlink import attributes, items, number, text
from tracer.rules.nftables import data_types
from tracer.rules.nftables.data_types import HOST_NUMBER, INTEGER, NUMBER
from tracer.rules.nftables.user_data import user_data
from tracer.util.json_value import Json, JsonObject

ANONYMOUS, INTERVAL, MAP, OBJECT = 0x1, 0x4, 0x8, 0x40
"""Flags of a set."""
INTERVAL_END, CATCH_ALL = 1, 2
"""Flags of an element."""
VERDICT_TYPE = 0xFFFFFF00
MOST_KEY = 64
"""Largest key of a set, bytes (NFT_DATA_VALUE_MAXLEN)."""
_HOST_ENDIAN, _BIG_ENDIAN = 1, 2
_KEY_ORDER, _DATA_ORDER, _SET_COMMENT = 0, 1, 7
"""Kinds of nft's user data of a set."""
_VERDICTS = {0: "drop", 1: "accept", 0xFFFFFFFB: "return", 0xFFFFFFFF: "continue", 0xFFFFFFFE: "break"}
_JUMPS = {0xFFFFFFFD: "jump", 0xFFFFFFFC: "goto"}
_NSECS = 1000


class UnreadElements(Exception):
    """The elements of a set were not read, or they have a form that this program does not know."""


def verdict(raw: bytes) -> JsonObject:
    """A verdict from its attributes (NFTA_VERDICT_*), as `nft -j` writes it; {"unknown": ...} for one that is not known."""
    found = attributes(raw)
    code = number(found.get(1))
    if code in _JUMPS and 2 in found:
        return {_JUMPS[code]: {"target": text(found[2])}}
    if code in _VERDICTS:
        return {_VERDICTS[code]: None}
    return {"unknown": f"verdict {code}"}


@dataclass(frozen=True)
class SetDefinition:
    """A set or map, without its elements. raw: its attributes (NFTA_SET_*)."""

    raw: bytes

    @cached_property
    def _attributes(self) -> dict[int, bytes]:
        return attributes(self.raw)

    @property
    def name(self) -> str:
        return text(self._attributes.get(2))

    @property
    def flags(self) -> int:
        return number(self._attributes.get(3))

    @property
    def is_anonymous(self) -> bool:
        return bool(self.flags & ANONYMOUS)

    @property
    def is_map(self) -> bool:
        return bool(self.flags & MAP)

    @property
    def has_verdicts(self) -> bool:
        return number(self._attributes.get(6)) == VERDICT_TYPE

    @property
    def key_length(self) -> int:
        """Bytes of a key."""
        return min(number(self._attributes.get(5)), MOST_KEY)

    @property
    def data_length(self) -> int:
        """Bytes of a value."""
        return number(self._attributes.get(7))

    @property
    def timeout(self) -> int:
        """Its default timeout, ms; 0 = none."""
        return number(self._attributes.get(11))

    @property
    def comment(self) -> str:
        return text(user_data(self._attributes.get(13, b"")).get(_SET_COMMENT))

    @property
    def data_types(self) -> list[int]:
        """Types of the parts of a value."""
        return self._typed(number(self._attributes.get(6)), _DATA_ORDER)

    @cached_property
    def key_types(self) -> list[int]:
        """Types of the parts of a key."""
        return self._typed(number(self._attributes.get(4)), _KEY_ORDER)

    def _typed(self, types: int, order: int) -> list[int]:
        """Types with the byte order of integers, which nft writes into its user data; without it they stay INTEGER."""
        raw = user_data(self._attributes.get(13, b"")).get(order, b"")
        known = {_HOST_ENDIAN: HOST_NUMBER, _BIG_ENDIAN: NUMBER}.get(int.from_bytes(raw[:4], "little"), INTEGER)
        return [known if kind == INTEGER else kind for kind in data_types.types_of(types)]

    @cached_property
    def key_sizes(self) -> list[int]:
        """Bytes of each part of a concatenated key where the kernel knows them, else []."""
        fields = items(attributes(self._attributes.get(9, b"")).get(2, b""))
        return [number(attributes(field).get(1)) for _, field in fields]

    def elements(self, raws: Iterable[bytes], kinds: Sequence[int] = ()) -> list[Json]:
        """The elements as `nft -j` writes them, in the order of their keys.

        Args:
            raws: Attributes of the elements (NFTA_SET_ELEM_*).
            kinds: Types of the parts of a key, where the set does not say in which order the bytes of an integer are.

        Raises:
            UnreadElements: An element has a form that is not known.
        """
        types = self.key_types
        if INTEGER in types and len(kinds) == len(types):
            types = [known if kind == INTEGER else kind for kind, known in zip(types, kinds, strict=True)]
        if not types or INTEGER in types:
            raise UnreadElements("the type of its keys is not known")
        found = [attributes(raw) for raw in raws]
        pairs = self._ranges(found, types) if self.flags & INTERVAL and len(types) == 1 else self._single(found, types)
        return [self._element(key, of) for key, of in pairs]

    def _single(self, found: list[dict[int, bytes]], types: list[int]) -> Iterator[tuple[Json, dict[int, bytes]]]:
        for each in sorted(found, key=lambda a: (bool(number(a.get(3)) & CATCH_ALL), _order(types, _bytes_of(a.get(1))))):
            if number(each.get(3)) & CATCH_ALL:
                yield "*", each
                continue
            first = self._parts(types, _bytes_of(each.get(1)))
            if 10 not in each:
                yield data_types.concatenation(data_types.value(*part) for part in first), each
                continue
            last = self._parts(types, _bytes_of(each[10]))
            parts = (data_types.prefix_or_range(kind, a, b) for (kind, a), (_, b) in zip(first, last, strict=True))
            yield data_types.concatenation(parts), each

    def _ranges(self, found: list[dict[int, bytes]], types: list[int]) -> Iterator[tuple[Json, dict[int, bytes]]]:
        """Ranges from elements that begin one and elements that end one. Their keys are in network order."""
        (kind,) = types
        if kind in (data_types.IFNAME, data_types.STRING):
            raise UnreadElements("they are beginnings of names")
        kind = NUMBER if kind in (data_types.MARK, HOST_NUMBER) else kind
        size = data_types.SIZES.get(kind, self.key_length)
        of_keys = [a for a in found if not number(a.get(3)) & CATCH_ALL]
        ordered = sorted(of_keys, key=lambda a: (_bytes_of(a.get(1)), not number(a.get(3)) & INTERVAL_END))
        for at, each in enumerate(ordered):
            if number(each.get(3)) & INTERVAL_END:
                continue
            first = _bytes_of(each.get(1))[:size]
            if 10 in each:
                last = _bytes_of(each[10])[:size]
            elif at + 1 < len(ordered):
                last = (int.from_bytes(_bytes_of(ordered[at + 1].get(1))[:size], "big") - 1).to_bytes(size, "big")
            else:
                last = b"\xff" * size
            yield data_types.prefix_or_range(kind, first, last), each
        yield from (("*", a) for a in found if number(a.get(3)) & CATCH_ALL)

    def _parts(self, types: list[int], raw: bytes) -> list[tuple[int, bytes]]:
        parts = data_types.split(types, raw, self.key_sizes)
        if parts is None:
            raise UnreadElements("the size of a part of its keys is not known")
        return parts

    def _element(self, key: Json, each: dict[int, bytes]) -> Json:
        given: JsonObject = {"val": key}
        if 4 in each:
            given["timeout"] = number(each[4]) // _NSECS
        if 5 in each:
            given["expires"] = number(each[5]) // _NSECS
        comment = text(user_data(each.get(6, b"")).get(0))
        if comment:
            given["comment"] = comment
        if 7 in each or 11 in each:
            given["counter"] = None
        left: Json = {"elem": given} if len(given) > 1 else key
        if not self.is_map:
            return left
        if self.flags & OBJECT:
            return [left, text(each.get(9))]
        data = attributes(each.get(2, b""))
        if self.has_verdicts:
            return [left, verdict(data.get(2, b""))]
        types = self.data_types
        parts = data_types.split(types, data.get(1, b"")) if types and INTEGER not in types else None
        if parts is None:
            raise UnreadElements("the type of its values is not known")
        return [left, data_types.concatenation(data_types.value(*part) for part in parts)]


def _bytes_of(raw: bytes | None) -> bytes:
    """The bytes of a value from its attributes (NFTA_DATA_*)."""
    return attributes(raw or b"").get(1, b"")


def _order(types: list[int], raw: bytes) -> tuple[int, ...]:
    """Sort key of a key: by the numbers of its parts."""
    parts = data_types.split(types, raw)
    return tuple(data_types.as_integer(*part) for part in parts) if parts else (int.from_bytes(raw, "big"),)
