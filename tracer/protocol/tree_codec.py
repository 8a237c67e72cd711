# SPDX-License-Identifier: Apache-2.0
"""Plain trees of the frozen classes of the model: encoding, and decoding of trees that a peer sent.

A tree has objects (dict with the class in CLASS), lists, and leaves: texts, numbers, truth values and null. Its leaves are
numbered in the order in which they are written. A field with its default value is not written.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

from tracer.model import (
    bpf_program,
    check,
    connection,
    counter_mismatch,
    endpoints,
    finding,
    handshake,
    hop,
    kube,
    loss,
    netfilter,
    rule,
    summary,
    timeline,
)
from tracer.model import packet as packets
from tracer.model.evidence import Evidence
from tracer.protocol import messages
from tracer.protocol.limits import MOST_DEPTH, MOST_ITEMS, MOST_LEAVES, MOST_TEXT
from tracer.protocol.malformed_frame import MalformedFrame

CLASS = "$"
"""Key of an object's class."""
BIGGEST = 1 << 64
"""Numbers are smaller than this, and larger than its negative."""
CLASSES: Mapping[str, type] = {
    each.__name__: each
    for each in (
        packets.Packet, packets.Flow, endpoints.Endpoints, kube.Owner,
        hop.HookHop, hop.NatHookHop, hop.TableHop, hop.ChainHop, hop.NatHop, hop.IpvsNatHop, hop.IpvsRefusalHop, hop.SocketHop,
        hop.HandshakeHop, hop.DetailHop, hop.DropHop, hop.RouteHop, hop.Nat, hop.Handshake, hop.Socket, hop.DecisionDetail,
        hop.Drop, hop.IpvsDecision, hop.RedirectHop, hop.Redirect, bpf_program.ProgramAction, bpf_program.AttachedProgram,
        rule.RuleTrace, rule.RuleHit, rule.RuleLocation, rule.Rule,
        finding.Finding, finding.FindingEvidence, handshake.HandshakeVerdict, handshake.ConnectionAttempt, handshake.Cause,
        timeline.Timeline, timeline.TimelineEntry, timeline.PathStep, connection.ConnectionKey, loss.Loss,
        summary.RunSummary, summary.OutputLoss, counter_mismatch.CounterMismatch, check.CheckResult,
        messages.Hello, messages.Begin, messages.Shed, messages.Note, messages.Ping, messages.Pong, messages.PacketClock,
        messages.BatchEnd, messages.End, messages.ClientHello, messages.Credit,
    )
}  # fmt: skip
"""The classes that trees may have, by name."""
NOT_SENT = frozenset({
    ("RuleTrace", "ruleset"), ("ConnectionAttempt", "synacks"), ("ConnectionAttempt", "acks"), ("ConnectionAttempt", "resets"),
    ("ConnectionAttempt", "errors"), ("Finding", "subject"),
})  # fmt: skip
"""Fields that stay on the node: a ruleset is large, an attempt's answers are packets of their own, and Events about a finding
are made on its node."""
VARIABLE = frozenset({"Packet", "Flow", "Endpoints", "Socket", "Nat"})
"""Classes of which the texts differ from packet to packet on the same path, as addresses."""
HOPS = frozenset(name for name, cls in CLASSES.items() if issubclass(cls, hop.HopBase))

Leaf: TypeAlias = str | int | float | bool | None
Tree: TypeAlias = "Leaf | list[Tree] | dict[str, Tree]"
Shape: TypeAlias = tuple[object, ...]


class _Omitted(Exception):
    """An object of a class that this version does not know, in a place where it can be left out."""


# ---- encoding ----


@lru_cache(256)
def _written_fields(cls: type) -> tuple[tuple[str, object], ...]:
    """The fields of a class that are sent, with their defaults."""
    found = []
    for each in fields(cls):
        if (cls.__name__, each.name) not in NOT_SENT:
            default: object = each.default
            if each.default_factory is not MISSING:
                default = each.default_factory()
            found.append((each.name, default))
    return tuple(found)


def encode(value: object) -> Tree:
    """The tree of a value. Raises TypeError for an object of another class, ValueError for a list that is too long."""
    kind: type = type(value)
    if kind is str:
        return _cut(cast(str, value))
    if kind in (int, bool, float, NoneType):
        return cast(Leaf, value)
    if isinstance(value, StrEnum):
        return value.value
    if kind.__name__ in CLASSES:
        tree: dict[str, Tree] = {CLASS: kind.__name__}
        for name, default in _written_fields(kind):
            inner = getattr(value, name)
            if inner is default or (inner == default and type(inner) is type(default)):
                continue
            tree[name] = encode(inner)
        return tree
    if isinstance(value, Mapping):
        return {str(key): encode(inner) for key, inner in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return _cut(str(value))
    if isinstance(value, (Sequence, frozenset, set)):
        if len(value) > MOST_ITEMS:
            raise ValueError(f"a list of {len(value)} items")
        return [encode(inner) for inner in value]
    raise TypeError(f"no code for {kind.__name__}")


def _cut(text: str) -> str:
    """A text that a peer accepts: a longer one is cut off, visibly."""
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."


def flatten(tree: Tree) -> tuple[list[Leaf], Shape]:
    """The leaves of a tree in order, and what a template has to share with it: structure, and the texts of its rules."""
    leaves: list[Leaf] = []
    shape: list[object] = []
    _flatten(tree, leaves, shape, False)
    return leaves, tuple(shape)


def _flatten(tree: Tree, leaves: list[Leaf], shape: list[object], is_constant: bool) -> None:
    if isinstance(tree, dict):
        name = tree.get(CLASS)
        is_constant = name not in VARIABLE if name else is_constant
        shape.append(name)
        for key, inner in tree.items():
            if key != CLASS:
                shape.append(key)
                if isinstance(inner, (dict, list)):
                    _flatten(inner, leaves, shape, is_constant)
                else:
                    leaves.append(inner)
                    if is_constant and isinstance(inner, str):
                        shape.append(inner)
    elif isinstance(tree, list):
        shape.append(len(tree))
        for inner in tree:
            _flatten(inner, leaves, shape, is_constant)
    else:
        leaves.append(tree)


def to_bytes(tree: Tree) -> bytes:
    """The body of a frame with this tree."""
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()


# ---- decoding ----


def from_bytes(body: bytes) -> Tree:
    """The tree in a body, with its bounds checked. Raises MalformedFrame."""
    try:
        tree = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as e:
        raise MalformedFrame("a body is not valid JSON") from e
    _check_bounds(tree, 0)
    if _count(tree) > MOST_LEAVES:
        raise MalformedFrame("a tree has too many values")
    return cast(Tree, tree)


def _refuse(name: str) -> float:
    raise ValueError(name)


def _check_bounds(tree: object, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise MalformedFrame("a tree is nested too deep")
    if isinstance(tree, (dict, list)):
        if len(tree) > MOST_ITEMS:
            raise MalformedFrame("a list is too long")
        for inner in tree.values() if isinstance(tree, dict) else tree:
            _check_bounds(inner, depth + 1)
    elif isinstance(tree, str):
        if len(tree) > MOST_TEXT:
            raise MalformedFrame("a text is too long")
    elif isinstance(tree, (int, float)) and not -BIGGEST < tree < BIGGEST:
        raise MalformedFrame("a number is too large")


def _count(tree: Tree) -> int:
    """The number of leaves of a tree."""
    if isinstance(tree, dict):
        return sum(_count(inner) for key, inner in tree.items() if key != CLASS)
    return sum(map(_count, tree)) if isinstance(tree, list) else 1


@dataclass(frozen=True)
class _Part:
    """A part of a decoded tree.

    Attributes:
        value: Its value.
        begin: Number of its first leaf.
        end: Number of the leaf behind its last one.
        make: Makes the value from the values of its children, or of a leaf from what was sent.
        children: Its parts by name; empty for a leaf.
    """

    value: object
    begin: int
    end: int
    make: Callable[..., object]
    children: Mapping[str | int, _Part] | None = None

    def rebuilt(self, positions: Sequence[int], leaves: Mapping[int, Leaf]) -> object:
        """The value with other leaves. positions: sorted numbers of these leaves."""
        at = bisect_left(positions, self.begin)
        if at == len(positions) or positions[at] >= self.end:
            return self.value
        if self.children is None:
            return self.make(leaves[self.begin]) if self.begin in leaves else self.value
        return self.make({name: child.rebuilt(positions, leaves) for name, child in self.children.items()})


class Decoded:
    """A decoded tree, from which equal trees with other leaves are made.

    Attributes:
        value: Its value.
        leaves: Number of its leaves.
    """

    def __init__(self, tree: Tree, cls: type) -> None:
        """Raises MalformedFrame: The tree is none of this class."""
        self.leaves = _count(tree)
        try:
            self._part = _decode(tree, cls, 0)
        except _Omitted as e:
            raise MalformedFrame(f"an object of the unknown class {e}") from e
        self.value = self._part.value

    def with_leaves(self, leaves: Mapping[int, Leaf]) -> object:
        """The value with other leaves, by number. Raises MalformedFrame."""
        if not leaves:
            return self.value
        positions = sorted(leaves)
        if positions[0] < 0 or positions[-1] >= self.leaves:
            raise MalformedFrame("a value has no place in its template")
        return self._part.rebuilt(positions, leaves)


def decode(tree: Tree, cls: type) -> object:
    """The value of a tree, an object of this class. Raises MalformedFrame."""
    return Decoded(tree, cls).value


def _decode(tree: Tree, declared: object, begin: int) -> _Part:
    """The part of a tree. Raises MalformedFrame, _Omitted."""
    if declared is object:
        return _decode_any(tree, begin)
    origin = get_origin(declared)
    if origin in (Union, UnionType):
        return _decode_union(tree, get_args(declared), begin)
    if origin in (tuple, list, Sequence, _SEQUENCE):
        return _decode_list(tree, declared, begin)
    if origin in (dict, Mapping, _MAPPING):
        return _decode_map(tree, get_args(declared)[1], begin)
    if isinstance(declared, type) and is_dataclass(declared):
        return _decode_object(tree, declared, begin)
    make = _leaf_maker(declared)
    if isinstance(tree, (dict, list)):
        raise MalformedFrame("a value has the wrong type")
    return _Part(make(tree), begin, begin + 1, make)


_SEQUENCE, _MAPPING = get_origin(Sequence[int]), get_origin(Mapping[str, int])


def _decode_union(tree: Tree, options: Sequence[object], begin: int) -> _Part:
    if tree is None and NoneType in options:
        return _Part(None, begin, begin + 1, _union_leaf(tuple(options)))
    classes = [each for each in options if isinstance(each, type) and is_dataclass(each)]
    if isinstance(tree, dict) and classes:
        name = tree.get(CLASS)
        found = next((each for each in classes if each.__name__ == name), None)
        if found is None:
            if isinstance(name, str) and name not in CLASSES:
                raise _Omitted(name)
            raise MalformedFrame("an object has the wrong class")
        return _decode_object(tree, found, begin)
    if isinstance(tree, list) and (inner := next((each for each in options if get_origin(each) is tuple), None)):
        return _decode_list(tree, inner, begin)
    if isinstance(tree, (dict, list)):
        raise MalformedFrame("a value has the wrong type")
    make = _union_leaf(tuple(options))
    return _Part(make(tree), begin, begin + 1, make)


@lru_cache(256)
def _union_leaf(options: tuple[object, ...]) -> Callable[[Leaf], object]:
    makers = [_leaf_maker(each) for each in options if each is not NoneType and not _is_branch(each)]

    def make(leaf: Leaf) -> object:
        if leaf is None and NoneType in options:
            return None
        for maker in makers:
            try:
                return maker(leaf)
            except MalformedFrame:
                continue
        raise MalformedFrame("a value has the wrong type")

    return make


def _is_branch(declared: object) -> bool:
    return get_origin(declared) not in (None, Literal) or (isinstance(declared, type) and is_dataclass(declared))


def _decode_any(tree: Tree, begin: int) -> _Part:
    """A part of a finding's key: leaves, and lists of such."""
    if isinstance(tree, dict):
        raise MalformedFrame("a value has the wrong type")
    if isinstance(tree, list):
        return _decode_list(tree, tuple[object, ...], begin)
    return _Part(tree, begin, begin + 1, lambda leaf: leaf)


def _decode_list(tree: Tree, declared: object, begin: int) -> _Part:
    if not isinstance(tree, list):
        raise MalformedFrame("a value has the wrong type")
    arguments = get_args(declared)
    is_fixed = get_origin(declared) is tuple and Ellipsis not in arguments
    if is_fixed and len(arguments) != len(tree):
        raise MalformedFrame("a list has the wrong length")
    children: dict[str | int, _Part] = {}
    at = begin
    for place, inner in enumerate(tree):
        end = at + _count(inner)
        try:
            children[place] = _decode(inner, arguments[place] if is_fixed else arguments[0], at)
        except _Omitted:
            if is_fixed:
                raise
        at = end
    made = list if get_origin(declared) is list else tuple

    def make(values: Mapping[str | int, object]) -> object:
        return made(values.values())

    return _Part(make({name: part.value for name, part in children.items()}), begin, at, make, children)


def _decode_map(tree: Tree, declared: object, begin: int) -> _Part:
    if not isinstance(tree, dict):
        raise MalformedFrame("a value has the wrong type")
    children: dict[str | int, _Part] = {}
    at = begin
    for key, inner in tree.items():
        if key != CLASS:
            children[key] = part = _decode(inner, declared, at)
            at = part.end
    return _Part({name: part.value for name, part in children.items()}, begin, at, dict, children)


def _decode_object(tree: Tree, cls: type, begin: int) -> _Part:
    if not isinstance(tree, dict) or tree.get(CLASS) != cls.__name__:
        raise MalformedFrame(f"an object is no {cls.__name__}")
    declared = _declared(cls)
    children: dict[str | int, _Part] = {}
    is_partial = False
    at = begin
    for key, inner in tree.items():
        if key == CLASS:
            continue
        end = at + _count(inner)
        if key in declared:
            try:
                children[key] = _decode(inner, declared[key], at)
            except _Omitted:
                is_partial = True
            if key == "hops" and isinstance(inner, list):
                is_partial = is_partial or any(isinstance(h, dict) and h.get(CLASS) not in HOPS for h in inner)
        at = end
    missing = _missing(cls, frozenset(map(str, children)))
    if is_partial and "complete" in declared:
        # A hop of a kind that this version does not know: what is absent proves nothing.
        missing["complete"] = False
        children.pop("complete", None)

    def make(values: Mapping[str | int, object]) -> object:
        return cls(**missing, **{str(name): value for name, value in values.items()})

    return _Part(make({name: part.value for name, part in children.items()}), begin, at, make, children)


def _missing(cls: type, present: frozenset[str]) -> dict[str, object]:
    """Values of the fields without a default that an older peer did not send. Raises MalformedFrame."""
    found: dict[str, object] = {}
    for each in fields(cls):
        if each.name not in present and each.default is MISSING and each.default_factory is MISSING:
            found[each.name] = _zero(_declared(cls)[each.name], cls, each.name)
    return found


def _zero(declared: object, cls: type, name: str) -> object:
    if get_origin(declared) in (Union, UnionType) and NoneType in get_args(declared):
        return None
    if get_origin(declared) is tuple:
        return ()
    if declared in (str, int, bool, float):
        return cast(type, declared)()
    raise MalformedFrame(f"a {cls.__name__} without {name}")


@lru_cache(256)
def _declared(cls: type) -> dict[str, object]:
    """The types of the fields of a class that a peer may send."""
    hints = get_type_hints(cls, localns={**CLASSES, "Hop": hop.Hop, "Netns": str})
    kept = {each.name for each in fields(cls)} - {name for of, name in NOT_SENT if of == cls.__name__}
    return {name: _plain(hint) for name, hint in hints.items() if name in kept}


def _plain(hint: object) -> object:
    """A type without the names that only the type checker needs."""
    return getattr(hint, "__supertype__", hint)


@lru_cache(256)
def _leaf_maker(declared: object) -> Callable[[Leaf], object]:
    """The function that makes a value of this type from a leaf; it raises MalformedFrame."""
    declared = _plain(declared)
    if isinstance(declared, type) and issubclass(declared, StrEnum):
        return _enum_maker(declared)
    if get_origin(declared) is Literal:
        return _word_maker(get_args(declared))
    if declared is bytes:
        return _bytes
    if declared is float:
        return _float

    def make(leaf: Leaf) -> object:
        if type(leaf) is not declared:
            raise MalformedFrame("a value has the wrong type")
        return leaf

    return make


_UNKNOWN: Mapping[type, object] = {
    netfilter.Hook: netfilter.Hook.NONE, packets.Outcome: packets.Outcome.UNKNOWN, Evidence: Evidence.DERIVED,
}  # fmt: skip
"""What a word of a newer peer becomes."""


def _enum_maker(cls: type[StrEnum]) -> Callable[[Leaf], object]:
    known = {each.value: each for each in cls}

    def make(leaf: Leaf) -> object:
        if not isinstance(leaf, str):
            raise MalformedFrame("a value has the wrong type")
        if leaf in known:
            return known[leaf]
        # AnyVerdict: a word that this version does not know is shown as it is.
        return netfilter.decode_verdict(leaf) if cls is netfilter.Verdict else _UNKNOWN[cls]

    return make


def _word_maker(words: Sequence[object]) -> Callable[[Leaf], object]:
    """For a Literal: a word of a newer peer becomes the last one, which promises least."""

    def make(leaf: Leaf) -> object:
        if not isinstance(leaf, str):
            raise MalformedFrame("a value has the wrong type")
        return leaf if leaf in words else words[-1]

    return make


def _bytes(leaf: Leaf) -> bytes:
    if not isinstance(leaf, str):
        raise MalformedFrame("a value has the wrong type")
    try:
        return bytes.fromhex(leaf)
    except ValueError as e:
        raise MalformedFrame("bytes are not hexadecimal") from e


def _float(leaf: Leaf) -> float:
    if isinstance(leaf, bool) or not isinstance(leaf, (int, float)):
        raise MalformedFrame("a value has the wrong type")
    return float(leaf)
