# SPDX-License-Identifier: Apache-2.0
"""structs.h: the fields that bpf/ reads, at the offsets of a kernel that is described here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.builders import BtfBuilder
from tracer.errors import NoBtf
from tracer.events import bpf_source
from tracer.kernel import struct_layouts
from tracer.kernel.btf import KernelTypes
from tracer.kernel.struct_layouts import LAYOUTS

Members = dict[str, tuple[int, int]]


def needed(b: BtfBuilder, leave_out: str = "", inum: int = 144) -> None:
    """The structures that every run needs, without `leave_out`. inum: its offset in struct net."""
    u8, u16, u32 = b.integer("unsigned char", 1), b.integer("short unsigned int", 2), b.integer("unsigned int", 4)
    u64, char, void = b.integer("long unsigned int", 8), b.integer("char", 1), b.pointer(0)
    to = {name: b.pointer(b.forward(name)) for name in ("net_device", "sock", "socket", "file", "inode", "net")}
    real_net = b.pointer(b.struct("net", 4288, {"ns": (b.struct("ns_common", 24, {"inum": (u32, 16)}), inum - 16)}))
    a_net = b.struct("", 8, {"net": (real_net, 0)})
    common = b.struct("sock_common", 136, {"skc_net": (a_net, 48), "skc_state": (b.const(u8), 18)})
    queue = b.struct("request_sock_queue", 32, {"qlen": (b.struct("", 4, {"counter": (u32, 0)}), 8)})
    sk = b.struct("sock_for_pointers", 8, {})
    structs: dict[str, tuple[int, Members]] = {
        "sk_buff": (232, {
            "dev": (to["net_device"], 16), "sk": (b.pointer(sk), 24), "_nfct": (u64, 104), "skb_iif": (u32, 144),
            "mark": (u32, 168), "protocol": (b.typedef("__be16", u16), 180), "network_header": (u16, 184),
            "head": (b.pointer(u8), 200),
        }),
        "net_device": (2432, {
            "name": (b.array(char, 16), 0), "flags": (u32, 192), "ifindex": (u32, 216), "nd_net": (a_net, 1280),
        }),
        "nf_hook_state": (48, {"hook": (u8, 0), "pf": (u8, 1), "in": (void, 8), "out": (void, 16), "net": (void, 32)}),
        "sock": (760, {
            "__sk_common": (common, 0), "sk_ack_backlog": (u32, 580), "sk_max_ack_backlog": (u32, 584),
            "sk_socket": (to["socket"], 624),
        }),
        "inet_connection_sock": (1400, {"icsk_accept_queue": (queue, 976)}),
        "socket": (128, {"file": (to["file"], 16)}),
        "file": (232, {"f_inode": (to["inode"], 32)}),
        "inode": (600, {"i_ino": (u64, 64)}),
    }  # fmt: skip
    for name, (size, members) in structs.items():
        if name != leave_out:
            b.struct(name, size, members)


def header(directory: Path, vmlinux: BtfBuilder, **modules: BtfBuilder) -> str:
    (directory / "vmlinux").write_bytes(vmlinux.blob())
    for name, b in modules.items():
        (directory / name).write_bytes(b.blob())
    return struct_layouts.header(KernelTypes(directory))


@pytest.fixture
def vmlinux() -> BtfBuilder:
    b = BtfBuilder()
    needed(b)
    return b


def block(text: str, name: str) -> list[str]:
    """The lines of one structure."""
    at = text.index(f"struct {name} {{")
    return text[at : text.index("};", at)].splitlines()[1:]


def test_fields_are_in_order_with_padding_between(tmp_path: Path, vmlinux: BtfBuilder) -> None:
    assert [line.strip() for line in block(header(tmp_path, vmlinux), "net_device")] == [
        "u8 name[16];", "u8 before_flags[176];", "u32 flags;", "u8 before_ifindex[20];", "u32 ifindex;",
        "u8 before_nd_net_net[1060];", "struct net *nd_net_net;",
    ]  # fmt: skip


def test_existing_structures_and_fields_are_defined(tmp_path: Path, vmlinux: BtfBuilder) -> None:
    lines = header(tmp_path, vmlinux).splitlines()
    assert {"struct net;", "struct sock_for_pointers;"} <= set(lines), "the target of a pointer is declared"
    assert '_Static_assert(__builtin_offsetof(struct sk_buff, protocol) == 180, "sk_buff.protocol");' in lines
    assert "#define HAVE_sk_buff" in lines
    assert "#define SIZEOF_sk_buff 232" in lines
    assert "#define HAVE_sock___sk_common_skc_state" in lines
    assert "#define OFFSET_sock___sk_common_skc_state 18" in lines
    assert "#define OFFSET_inet_connection_sock_icsk_accept_queue_qlen_counter 984" in lines


def test_offsets_are_this_kernels(tmp_path: Path) -> None:
    b = BtfBuilder()
    needed(b, inum=200)
    assert block(header(tmp_path, b), "net") == ["    u8 before_ns_inum[200];", "    u32 ns_inum;"]


def test_missing_structures_are_left_out(tmp_path: Path, vmlinux: BtfBuilder) -> None:
    vmlinux.enum("skb_drop_reason", {"SKB_NOT_DROPPED_YET": 0})
    text = header(tmp_path, vmlinux)
    for row in LAYOUTS:
        assert (f"#define HAVE_{row.struct}\n" in text) == row.needed, row.struct
    assert "ENUM_NF_CT_EXT_NAT" not in text


@pytest.mark.parametrize("name", [row.struct for row in LAYOUTS if row.needed and row.struct != "net"])
def test_a_missing_needed_structure_is_named(name: str, tmp_path: Path) -> None:
    b = BtfBuilder()
    needed(b, leave_out=name)
    with pytest.raises(NoBtf, match=f"^This kernel's BTF does not describe struct {name}, which tracing needs\\.$"):
        header(tmp_path, b)


def conntrack(vmlinux: BtfBuilder, extensions: int = 10, nfproto: bool = True) -> BtfBuilder:
    """nf_conntrack, with this number of extensions, and with zones if `nfproto`; both depend on the kernel's options."""
    b = BtfBuilder(vmlinux)
    u8, u16 = b.integer("u8x", 1), b.integer("u16x", 2)
    zone: Members = {"zone": (b.struct("nf_conntrack_zone", 4, {"id": (u16, 0)}), 12)} if nfproto else {}
    ext = b.struct("nf_ct_ext", 24, {"offset": (b.array(u8, extensions), 0)})
    hash_ = b.struct("nf_conntrack_tuple_hash", 56, {"tuple": (b.struct("nf_conntrack_tuple", 40, {}), 16)})
    b.struct("nf_conn", 256, {**zone, "tuplehash": (b.array(hash_, 2), 16), "ext": (b.pointer(ext), 200)})
    b.enum("nf_ct_ext_id", {"NF_CT_EXT_HELPER": 0, "NF_CT_EXT_NAT": 1, "NF_CT_EXT_NUM": extensions})
    return b


def test_structures_of_modules(tmp_path: Path, vmlinux: BtfBuilder) -> None:
    text = header(tmp_path, vmlinux, nf_conntrack=conntrack(vmlinux))
    assert block(text, "nf_conn") == [
        "    u8 before_zone_id[12];", "    u16 zone_id;", "    u8 before_tuplehash[2];", "    u8 tuplehash[112];",
        "    u8 before_ext[72];", "    struct nf_ct_ext *ext;",
    ]  # fmt: skip
    assert "#define SIZEOF_nf_conntrack_tuple_hash 56\n" in text
    assert "#define ENUM_NF_CT_EXT_NAT 1\n" in text


def test_bit_fields_are_numbers_only(tmp_path: Path, vmlinux: BtfBuilder) -> None:
    """struct nft_rule_dp: is_last in 1 bit, dlen in 12, handle in 42."""
    b = BtfBuilder(vmlinux)
    u64 = b.integer("u64x", 8)
    b.bit_fields("nft_rule_dp", 8, {"is_last": (u64, 0, 1), "dlen": (u64, 1, 12), "handle": (u64, 13, 42)})
    text = header(tmp_path, vmlinux, nf_tables=b)
    assert block(text, "nft_rule_dp") == []
    for line in (
        "HAVE_nft_rule_dp_handle",
        "OFFSET_nft_rule_dp_handle 1",
        "SHIFT_nft_rule_dp_handle 5",
        "WIDTH_nft_rule_dp_handle 42",
    ):
        assert f"#define {line}\n" in text
    assert "__builtin_offsetof(struct nft_rule_dp" not in text


def test_a_field_that_this_kernel_was_built_without(tmp_path: Path, vmlinux: BtfBuilder) -> None:
    text = header(tmp_path, vmlinux, nf_conntrack=conntrack(vmlinux, nfproto=False))
    assert "#define HAVE_nf_conn\n" in text
    assert "HAVE_nf_conn_zone_id" not in text


@pytest.mark.parametrize("extensions", [4, 8, 10])
def test_an_array_of_any_size_stays_an_array(extensions: int, tmp_path: Path, vmlinux: BtfBuilder) -> None:
    """bpf/probes/nat.h reads `ext->offset[ENUM_NF_CT_EXT_NAT]`; the number of offsets depends on the kernel's options."""
    text = header(tmp_path, vmlinux, nf_conntrack=conntrack(vmlinux, extensions))
    assert block(text, "nf_ct_ext") == [f"    u8 offset[{extensions}];"]


def test_a_compiler_agrees(tmp_path: Path, vmlinux: BtfBuilder) -> None:
    """The assertions in the header hold: with the padding each field has its offset."""
    text = header(tmp_path, vmlinux, nf_conntrack=conntrack(vmlinux))
    sizes = {"u8": "char", "u16": "short", "u32": "int", "u64": "long long"}
    source = "".join(f"typedef unsigned {c} {name};\n" for name, c in sizes.items()) + text
    compiler = ["gcc", "-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-"]
    ran = subprocess.run(compiler, input=source, text=True, capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert text.count("_Static_assert") >= 30


def test_every_field_is_read_in_bpf() -> None:
    """A field that the C code does not name is useless; a field that it names and no row has does not compile."""
    c = "".join(p.read_text() for p in bpf_source.directory().glob("[!s]*/*.h"))
    for row in LAYOUTS:
        if row.struct != "pt_regs":
            for path in row.fields.split():
                assert path.replace(".", "_") in c, f"{row.struct}.{path}"
