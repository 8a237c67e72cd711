# SPDX-License-Identifier: Apache-2.0
"""Packets as templates and differences: a packet's tree is sent once, then only the leaves that differ.

Both sides keep the templates that were used last, at most MOST_TEMPLATES with MOST_TEMPLATE_BYTES, in the same order of use, so
neither says which are dropped.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from tracer.model.packet import Packet
from tracer.protocol.limits import MOST_BODY_BYTES, MOST_LEAVES, MOST_TEMPLATE_BYTES, MOST_TEMPLATES
from tracer.protocol.malformed_frame import MalformedFrame
from tracer.protocol.messages import FrameKind
from tracer.protocol.tree_codec import Decoded, Leaf, Shape, Tree, encode, flatten, from_bytes, to_bytes
from tracer.util.lru_dict import LruDict

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TemplateStore(Generic[K, V]):
    """The templates that were used last, at one end of a stream."""

    def __init__(self) -> None:
        self._bytes = 0
        self._templates: LruDict[K, tuple[int, V]] = LruDict(
            MOST_TEMPLATES, "packet templates of a stream", self._forget, is_exact=True
        )

    def _forget(self, key: K, entry: tuple[int, V]) -> None:
        self._bytes -= entry[0]

    def put(self, key: K, template: V, size: int) -> None:
        """Adds a template. size: length of its frame's body, bytes."""
        if key in self._templates:
            self._bytes -= self._templates[key][0]
        self._bytes += size
        self._templates[key] = size, template
        while self._bytes > MOST_TEMPLATE_BYTES and len(self._templates) > 1:
            self._templates.evict()

    def get(self, key: K) -> V | None:
        """A template, which becomes the one that was used last."""
        found = self._templates.get(key)
        return found[1] if found else None

    def __len__(self) -> int:
        return len(self._templates)


class PacketEncoder:
    """Makes the frames of packets."""

    def __init__(self) -> None:
        self._templates: TemplateStore[Shape, tuple[int, list[Leaf]]] = TemplateStore()
        self._last = 0

    def frames(self, packet: Packet) -> Iterator[tuple[FrameKind, bytes]]:
        """Yields kind and body of the frames of a packet: its template, if it was not sent before, and the packet.

        Raises ValueError, before the first frame, for a packet that is too large.
        """
        tree = encode(packet)
        leaves, shape = flatten(tree)
        if len(leaves) > MOST_LEAVES:
            raise ValueError(f"a packet with {len(leaves)} values")
        found = self._templates.get(shape)
        if found is None:
            body = to_bytes([self._last + 1, tree])
            if len(body) > MOST_BODY_BYTES:
                raise ValueError(f"a packet of {len(body)} bytes")
            self._last += 1
            found = self._last, leaves
            self._templates.put(shape, found, len(body))
            yield FrameKind.TEMPLATE, body
        number, template = found
        changes: list[Tree] = [number]
        for position, (leaf, old) in enumerate(zip(leaves, template, strict=True)):
            if leaf != old or type(leaf) is not type(old):
                changes += (position, leaf)
        yield FrameKind.PACKET, to_bytes(changes)


class PacketDecoder:
    """Reads the frames of packets. Raises MalformedFrame."""

    def __init__(self) -> None:
        self._templates: TemplateStore[int, Decoded] = TemplateStore()

    def template(self, body: bytes) -> None:
        """Takes a template."""
        tree = from_bytes(body)
        if not isinstance(tree, list) or len(tree) != 2 or type(tree[0]) is not int:
            raise MalformedFrame("a template has no number")
        self._templates.put(tree[0], Decoded(tree[1], Packet), len(body))

    def packet(self, body: bytes) -> Packet:
        """The packet of a frame."""
        tree = from_bytes(body)
        if not isinstance(tree, list) or len(tree) % 2 != 1:
            raise MalformedFrame("a packet has no template")
        number = tree[0]
        template = self._templates.get(number) if type(number) is int else None
        if template is None:
            raise MalformedFrame("a packet's template was not sent")
        packet = template.with_leaves(_leaves(tree))
        assert isinstance(packet, Packet)
        return packet


def _leaves(tree: Sequence[Tree]) -> dict[int, Leaf]:
    found: dict[int, Leaf] = {}
    for position, leaf in zip(tree[1::2], tree[2::2], strict=True):
        if type(position) is not int or isinstance(leaf, (dict, list)):
            raise MalformedFrame("a value has the wrong type")
        found[position] = leaf
    return found
