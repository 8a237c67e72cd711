# SPDX-License-Identifier: Apache-2.0
"""Kernels without packages in the lab: a recorded kernel, with the commits undone that make the difference.

Distributions backport commits into old kernels, so nothing here depends on the version.
"""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable

import pytest

from tests.support import recorded_kernels
from tests.support.recorded_kernels import Data
from tests.unit.kernel.test_attach_plan import INLINED, NEW, OLD, planned, refused
from tracer.errors import NoBtf
from tracer.kernel import generated_headers, kernel_memory, struct_layouts, xt_extensions


def change(data: Data, name: str, module: str, parameters: list[str]) -> None:
    data["functions"][name] = {module: parameters}


def before_table_came_first(data: Data) -> None:
    """8844e01062dd, "netfilter: iptables: allow use of ipt_do_table as hookfn" (5.16)"""
    for name, module in (("ipt_do_table", "ip_tables"), ("ip6t_do_table", "ip6_tables")):
        change(data, name, module, ["sk_buff *", "nf_hook_state *", "xt_table *"])


def before_drop_reasons(data: Data) -> None:
    """c504e5c2f964, "net: skb: introduce kfree_skb_reason()" (5.17)"""
    data["enums"]["skb_drop_reason"] = {}
    data["tracepoints"]["kfree_skb"] = ["sk_buff *", "void *"]


def before_rule_blobs(data: Data) -> None:
    """2c865a8a28a1, "netfilter: nf_tables: add rule blob layout" (5.17)"""
    data["structures"].pop("nft_rule_dp", None)
    data["structures"]["nft_traceinfo"] = ["nf_tables", 48, {
        "pkt": [0, 8, 2, "nft_pktinfo", 0, 0], "basechain": [8, 8, 2, "nft_base_chain", 0, 0],
        "rule": [24, 8, 2, "nft_rule", 0, 0], "verdict": [32, 8, 2, "nft_verdict", 0, 0],
    }]  # fmt: skip
    change(data, "__nft_trace_packet", "nf_tables", ["nft_traceinfo *", "nft_chain *", "enum nft_trace_types"])


def before_ipvs_hooks(data: Data) -> None:
    """Kernel: "netfilter: ipvs: remove unneeded input wrappers" (5.16); ip_vs_in is inlined or has a suffix"""
    data["functions"].pop("ip_vs_in_hook", None)
    data["functions"].pop("ip_vs_in", None)


def before_reset_reasons(data: Data) -> None:
    """Kernel: "rstreason: prepare for passive reset" (6.10)"""
    for name in ("tcp_v4_send_reset", "tcp_v6_send_reset"):
        change(data, name, "vmlinux", ["sock *", "sk_buff *"])


def before_receiving_socket(data: Data) -> None:
    """c53795d48ee8, "net: add rx_sk to trace_kfree_skb" (6.11)"""
    data["tracepoints"]["kfree_skb"] = ["sk_buff *", "void *", "enum skb_drop_reason"]


def as_in_centos_stream_9(data: Data) -> None:
    """github.com/bella485/centos-stream-9 (5.14): net/netfilter/nf_tables_core.c at 0f724b285e41, which has rules as blobs, as
    5.17, and the trace's arguments as before 6.4; net/core/skbuff.c at 5326db7c8b41; net/ipv4/tcp_ipv4.c at 83107c524ded"""
    change(data, "__nft_trace_packet", "nf_tables", ["nft_traceinfo *", "nft_chain *", "enum nft_trace_types"])
    data["tracepoints"]["kfree_skb"] = ["sk_buff *", "void *", "enum skb_drop_reason"]
    change(data, "tcp_v4_send_reset", "vmlinux", ["sock *", "sk_buff *"])
    synack = ["sock *", "dst_entry *", "flowi *", "request_sock *", "tcp_fastopen_cookie *", "enum tcp_synack_type"]
    change(data, "tcp_v4_send_synack", "vmlinux", [*synack, "sk_buff *"])


def as_in_rhel_8(data: Data) -> None:
    """github.com/dongzhiyan-stack/linux-4.18.0-240.el8 (RHEL 8.3): net/ipv4/tcp_ipv4.c, net/ipv6/tcp_ipv6.c,
    net/ipv4/tcp_input.c, include/trace/events/skb.h, include/uapi/linux/bpf.h at 1369c8fa. Its modules have no BTF."""
    synack = ["sock *", "dst_entry *", "flowi *", "request_sock *", "tcp_fastopen_cookie *", "enum tcp_synack_type"]
    for name in ("tcp_v4_send_synack", "tcp_v6_send_synack"):
        change(data, name, "vmlinux", synack)
    data["tracepoints"]["kfree_skb"] = ["sk_buff *", "void *"]
    data["enums"]["bpf_map_type"] = {"BPF_MAP_TYPE_HASH": 1, "BPF_MAP_TYPE_PERF_EVENT_ARRAY": 4, "BPF_MAP_TYPE_SK_STORAGE": 24}


Undone = tuple[Callable[[Data], None], ...]
KERNELS: dict[str, tuple[str, Undone, dict[str, tuple[int, ...]], set[str]]] = {
    "Ubuntu 22.04, 5.15": (
        "6.1",
        (before_table_came_first, before_drop_reasons, before_rule_blobs, before_ipvs_hooks),
        {"table4": (1, 2, 3), "table4_begin": (1, 3), "drop": (1, 2, 0), "nft_rule": (1, 0, 0, 0, 3)},
        {"ipvs_in"},
    ),
    "Ubuntu 24.04, 6.8": (
        "6.12",
        (before_reset_reasons, before_receiving_socket),
        {"table4": (2, 3, 1), "drop": (1, 2, 3), "nft_rule": (4, 1, 2, 3, 5), "answer_reset4": (1, 2, 0)},
        set(),
    ),
    "RHEL 9's way: drop reasons backported to 5.14's netfilter": (
        "6.1",
        (before_table_came_first, before_rule_blobs, before_ipvs_hooks),
        {"table4": (1, 2, 3), "table4_begin": (1, 3), "drop": (1, 2, 3), "nft_rule": (1, 0, 0, 0, 3)},
        {"ipvs_in"},
    ),
    "CentOS Stream 9, 5.14, netfilter as of 5.17 and later": (
        "6.1",
        (as_in_centos_stream_9,),
        {"drop": (1, 2, 3), "nft_rule": (1, 0, 0, 0, 3), "answer_reset4": (1, 2, 0), "synack4": (7,)},
        set(),
    ),
}  # fmt: skip
"""Recorded kernel, undone commits, expected positions of arguments, rows without a function to watch."""


def changed_kernel(name: str) -> Data:
    base, undone, _, _ = KERNELS[name]
    data = copy.deepcopy(recorded_kernels.load(base))
    for undo in undone:
        undo(data)
    return data


@pytest.mark.parametrize("name", KERNELS)
def test_plan(name: str) -> None:
    base, _, positions, without = KERNELS[name]
    k = recorded_kernels.kernel(changed_kernel(name))
    found = planned(k, NEW)
    assert {row: found[row].positions for row in positions} == positions
    assert refused(k, NEW).keys() == without | ({*INLINED} if base in ("5.10", "6.1") else set())
    assert not any(row.assumed for row in found.values())
    assert len(xt_extensions.plan(k.types, k.symbols, NEW)) > 100


@pytest.mark.parametrize("name", KERNELS)
def test_headers_define_what_the_kernel_has(name: str) -> None:
    k = recorded_kernels.kernel(changed_kernel(name))
    rows = list(planned(k, NEW).values())
    texts = generated_headers.headers(k.types, k.symbols, rows, xt_extensions.plan(k.types, k.symbols, NEW), 4096, 2)
    _, undone, positions, _ = KERNELS[name]
    assert ("#define DROP_REASONS\n" in texts["plan.h"]) == bool(positions["drop"][2])
    assert ("#define HAVE_nft_rule_dp_handle\n" in texts["structs.h"]) == (before_rule_blobs not in undone)
    assert ("#define HAVE_nft_traceinfo_pkt\n" in texts["structs.h"]) == (positions["nft_rule"][1] == 0)
    assert struct_layouts.header(k.types) + kernel_memory.header(k.types) == texts["structs.h"]


def test_a_kernel_without_a_ring_buffer_is_refused_at_once() -> None:
    """RHEL 8.3. Its plan would be 5.10's, without the probes that show that a SYN was answered."""
    data = copy.deepcopy(recorded_kernels.load("5.10"))
    as_in_rhel_8(data)
    k = recorded_kernels.kernel(data)
    before = refused(recorded_kernels.kernel(recorded_kernels.load("5.10")), OLD)
    assert refused(k, OLD).keys() - before.keys() == {"synack4", "synack6"}
    found = planned(k, OLD)
    assert {name: found[name].positions for name in ("hook", "table4", "reset4", "syn", "drop")} == {
        "hook": (1, 2), "table4": (1, 2, 3), "reset4": (2, 3), "syn": (3, 4), "drop": (1, 2, 0),
    }  # fmt: skip
    with pytest.raises(NoBtf, match=r"^This kernel's BPF has no ring buffer \(BPF_MAP_TYPE_RINGBUF, Linux 5\.8\)"):
        struct_layouts.header(k.types)


@pytest.mark.parametrize("name", ["5.10", "6.1", "6.12", "7.2"])
def test_a_compiler_agrees_with_the_layouts(name: str) -> None:
    """The assertions in structs.h hold for every recorded kernel."""
    text = struct_layouts.header(recorded_kernels.kernel(recorded_kernels.load(name)).types)
    sizes = {"u8": "char", "u16": "short", "u32": "int", "u64": "long long"}
    source = "".join(f"typedef unsigned {c} {short};\n" for short, c in sizes.items()) + text
    ran = subprocess.run(
        ["gcc", "-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-"], input=source, text=True, capture_output=True
    )
    assert ran.returncode == 0, ran.stderr
    assert text.count("_Static_assert") >= 75
