# SPDX-License-Identifier: Apache-2.0
"""Structure layouts of the modules of 5.10, which have no BTF: modules have BTF since 5.11 (kernel commit 36e68442d1af, "bpf:
Load and verify kernel module BTFs").

It has only fields with the same offset in the whole 5.10 series, and only if embedded structures, which vmlinux describes,
have the size that these offsets depend on. `struct nftables_pernet` is not included: stable updates added it and moved its
fields; so the generation of the rules that a packet met is not known there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

INT, PTR, ARRAY = range(1, 4)
"""The kinds of BTF that are used here."""


@dataclass(frozen=True)
class Field:
    """Layout of a structure's field.

    Attributes:
        offset: Offset, bytes.
        size: Size, bytes.
        kind: Kind of BTF.
        target: Structure that a pointer points to, "" = none.
        shift: First bit of a bit field in the byte at `offset`.
        width: Width of a bit field, bits; 0 = not a bit field.
        element: Size of one element of an array of integers, bytes; 0 = not such an array.
    """

    offset: int
    size: int
    kind: int
    target: str
    shift: int = 0
    width: int = 0
    element: int = 0


class StructureSizes(Protocol):
    """The part of vmlinux's BTF that is used here."""

    def structure_size(self, name: str) -> int | None: ...


@dataclass(frozen=True)
class Structure:
    """Layout of a structure.

    Attributes:
        size: Size, bytes.
        fields: Layouts of its fields by name.
        given: Sizes of embedded structures, bytes, that its offsets depend on.
    """

    size: int
    fields: dict[str, Field]
    given: dict[str, int] = field(default_factory=dict)


def _number(offset: int, size: int) -> Field:
    return Field(offset, size, INT, "")


def _pointer(offset: int, target: str = "") -> Field:
    return Field(offset, 8, PTR, target)


def _bits(offset: int, size: int, width: int) -> Field:
    return Field(offset, size, INT, "", 0, width)


STRUCTURES = {
    "xt_action_param": Structure(40, {"matchinfo": _pointer(8), "hotdrop": _number(32, 1)}),
    "nf_conn_nat": Structure(8, {"masq_index": _number(4, 4)}),
    "nft_pktinfo": Structure(56, {"skb": _pointer(0, "sk_buff"), "xt.state": _pointer(32, "nf_hook_state")}),
    "nft_chain": Structure(
        120, {"table": _pointer(64, "nft_table"), "handle": _number(72, 8), "name": _pointer(88)}, {"rhlist_head": 16}
    ),
    "nft_base_chain": Structure(
        216,
        {"ops.priority": _number(32, 4), "policy": _number(64, 1), "chain": Field(80, 120, ARRAY, "")},
        {"nf_hook_ops": 40, "rhlist_head": 16},
    ),
    "nft_table": Structure(
        264, {"handle": _number(224, 8), "family": _bits(236, 2, 6), "name": _pointer(240)}, {"rhltable": 136}
    ),
    "nft_traceinfo": Structure(
        48, {"pkt": _pointer(0, "nft_pktinfo"), "basechain": _pointer(8), "rule": _pointer(24), "verdict": _pointer(32)}
    ),
    "nfqnl_instance": Structure(
        128,
        {
            "rcu": Field(16, 16, ARRAY, ""), "queue_maxlen": _number(36, 4), "queue_num": _number(52, 2),
            "queue_total": _number(68, 4),
        },
        {"spinlock": 4},
    ),
    "nft_verdict": Structure(16, {"code": _number(0, 4), "chain": _pointer(8, "nft_chain")}),
    "nft_rule": Structure(24, {"handle": _bits(16, 8, 42)}),
}  # fmt: skip


class BuiltinLayouts:
    """Built-in layouts with the interface of a module's BTF. vmlinux: BTF that must agree with them."""

    def __init__(self, vmlinux: StructureSizes) -> None:
        self._vmlinux = vmlinux

    def _find(self, name: str) -> Structure | None:
        found = STRUCTURES.get(name)
        if found and all(self._vmlinux.structure_size(inside) == size for inside, size in found.given.items()):
            return found
        return None

    def structure_size(self, name: str) -> int | None:
        found = self._find(name)
        return found.size if found else None

    def field(self, name: str, path: str) -> Field | None:
        found = self._find(name)
        return found.fields.get(path) if found else None
