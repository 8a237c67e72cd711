# SPDX-License-Identifier: Apache-2.0
"""The built-in layouts of 5.10's modules; they have the offsets that a compiler gives the kernel's own declarations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.builders import BtfBuilder
from tests.unit.kernel.test_struct_layouts import block, needed
from tracer.kernel import struct_layouts
from tracer.kernel.btf import KernelTypes
from tracer.kernel.module_layouts_5_10 import STRUCTURES, BuiltinLayouts, Field
from tracer.kernel.struct_layouts import LAYOUTS

SIZES = {"rhlist_head": 16, "nf_hook_ops": 40, "rhltable": 136, "spinlock": 4}


def old_kernel(directory: Path, sizes: dict[str, int], reasons: bool = False) -> KernelTypes:
    b = BtfBuilder()
    needed(b)
    for name, size in sizes.items():
        b.struct(name, size, {})
    if reasons:
        b.enum("skb_drop_reason", {"SKB_NOT_DROPPED_YET": 0})
    (directory / "vmlinux").write_bytes(b.blob())
    return KernelTypes(directory)


def test_they_are_declared_if_no_btf_describes_them(tmp_path: Path) -> None:
    text = struct_layouts.header(old_kernel(tmp_path, SIZES))
    assert block(text, "nft_pktinfo") == [
        "    struct sk_buff *skb;",
        "    u8 before_xt_state[24];",
        "    struct nf_hook_state *xt_state;",
    ]
    assert block(text, "nft_base_chain") == [
        "    u8 before_ops_priority[32];",
        "    u32 ops_priority;",
        "    u8 before_policy[28];",
        "    u8 policy;",
        "    u8 before_chain[15];",
        "    u8 chain[120];",
    ]
    assert "#define SHIFT_nft_rule_handle 0\n#define WIDTH_nft_rule_handle 42\n" in text
    assert "HAVE_nftables_pernet" not in text and "HAVE_ip_vs_conn" not in text


@pytest.mark.parametrize(("part", "lost"), [
    ("rhltable", {"nft_table"}), ("nf_hook_ops", {"nft_base_chain"}), ("rhlist_head", {"nft_base_chain", "nft_chain"}),
    ("spinlock", {"nfqnl_instance"}),
])  # fmt: skip
def test_a_kernel_with_other_build_options_is_not_known(part: str, lost: set[str], tmp_path: Path) -> None:
    for sizes in ({**SIZES, part: 8}, {n: s for n, s in SIZES.items() if n != part}):
        known = old_kernel(tmp_path, sizes).builtin_layouts
        assert known and {name for name in STRUCTURES if known.structure_size(name) is None} == lost
        assert all(known.field(name, path) is None for name in lost for path in STRUCTURES[name].fields)


def test_later_kernels_are_not_known(tmp_path: Path) -> None:
    assert old_kernel(tmp_path, SIZES).builtin_layouts
    assert old_kernel(tmp_path, SIZES, reasons=True).builtin_layouts is None
    (tmp_path / "nf_nat").write_bytes(BtfBuilder(BtfBuilder()).blob())
    assert old_kernel(tmp_path, SIZES).builtin_layouts is None, "a module is described"


def test_only_fields_that_are_read_and_lie_inside_their_structure() -> None:
    read = {row.struct: row.fields.split() for row in LAYOUTS}
    for name, structure in STRUCTURES.items():
        for path, field in structure.fields.items():
            assert path in read[name], f"{name}.{path}"
            assert field.offset % min(field.size, 8) == 0 and field.offset + field.size <= structure.size, f"{name}.{path}"
    assert BuiltinLayouts(NoStructures()).field("nft_rule", "handle") == Field(16, 8, 1, "", 0, 42)
    assert BuiltinLayouts(NoStructures()).field("nft_rule", "genmask") is None
    assert BuiltinLayouts(NoStructures()).structure_size("sk_buff") is None


class NoStructures:
    def structure_size(self, name: str) -> int | None:
        return None
