# SPDX-License-Identifier: Apache-2.0
"""What the modules of 5.10 look like, which describe nothing: modules have BTF since 5.11 (kernel commit 36e68442d1af, "bpf:
Load and verify kernel module BTFs").

Only of fields that were where they are throughout that series, and only where the embedded structures that vmlinux does
describe have the size that puts them there. `struct nftables_pernet` is not among them: stable updates brought it and moved
its fields; so which generation of the rules a packet met is not known there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

INT, PTR, ARRAY = range(1, 4)
"""Kinds of BTF that matter here."""


@dataclass(frozen=True)
class Field:
    """A structure's field: offset and size in bytes; `target` names the structure a pointer leads to.

    width: of a bit field, in bits, 0 for any other. shift: where in the byte at `offset` it begins. element: size of each of an
    array's integers, 0 for any other.
    """

    offset: int
    size: int
    kind: int
    target: str
    shift: int = 0
    width: int = 0
    element: int = 0


class StructureSizes(Protocol):
    """vmlinux's BTF, as far as it is asked here."""

    def structure_size(self, name: str) -> int | None: ...


@dataclass(frozen=True)
class Structure:
    """size in bytes. given: structures inside of it, and their sizes, on which its offsets depend."""

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
        216, {"policy": _number(64, 1), "chain": Field(80, 120, ARRAY, "")}, {"nf_hook_ops": 40, "rhlist_head": 16}
    ),
    "nft_table": Structure(
        264, {"handle": _number(224, 8), "family": _bits(236, 2, 6), "name": _pointer(240)}, {"rhltable": 136}
    ),
    "nft_traceinfo": Structure(
        48, {"pkt": _pointer(0, "nft_pktinfo"), "basechain": _pointer(8), "rule": _pointer(24), "verdict": _pointer(32)}
    ),
    "nft_verdict": Structure(16, {"code": _number(0, 4), "chain": _pointer(8, "nft_chain")}),
    "nft_rule": Structure(24, {"handle": _bits(16, 8, 42)}),
}  # fmt: skip


class BuiltinLayouts:
    """Answers as a module's BTF would. vmlinux: what must agree."""

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
