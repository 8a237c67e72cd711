"""Kernels that the lab has no packages of: one that was recorded, with the commits undone that tell them apart.

What a distribution brings back into an old kernel is why nothing here goes by version.
"""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable

import pytest

from tests import recorded_kernels
from tests.recorded_kernels import Data
from tests.test_plan import NEW, planned, refused
from tracer.kernel import acts, headers, layouts


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
    "RHEL 9's way: drop reasons brought back to 5.14's netfilter": (
        "6.1",
        (before_table_came_first, before_rule_blobs, before_ipvs_hooks),
        {"table4": (1, 2, 3), "table4_begin": (1, 3), "drop": (1, 2, 3), "nft_rule": (1, 0, 0, 0, 3)},
        {"ipvs_in"},
    ),
}  # fmt: skip
"""What it is made of, what is undone, where arguments must be found, which rows have nothing to watch."""


def made(name: str) -> Data:
    base, undone, _, _ = KERNELS[name]
    data = copy.deepcopy(recorded_kernels.load(base))
    for undo in undone:
        undo(data)
    return data


@pytest.mark.parametrize("name", KERNELS)
def test_plan(name: str) -> None:
    _, _, positions, without = KERNELS[name]
    k = recorded_kernels.kernel(made(name))
    found = planned(k, NEW)
    assert {row: found[row].positions for row in positions} == positions
    assert refused(k, NEW).keys() == without
    assert not any(row.assumed for row in found.values())
    assert len(acts.plan(k.types, k.symbols, NEW)) > 100


@pytest.mark.parametrize("name", KERNELS)
def test_headers_say_what_is_there(name: str) -> None:
    k = recorded_kernels.kernel(made(name))
    rows = list(planned(k, NEW).values())
    texts = headers.headers(k.types, k.symbols, rows, acts.plan(k.types, k.symbols, NEW), 4096, 2)
    _, undone, positions, _ = KERNELS[name]
    assert ("#define DROP_REASONS\n" in texts["plan.h"]) == bool(positions["drop"][2])
    assert ("#define HAVE_nft_rule_dp_handle\n" in texts["structs.h"]) == (before_rule_blobs not in undone)
    assert ("#define HAVE_nft_traceinfo_pkt\n" in texts["structs.h"]) == (positions["nft_rule"][1] == 0)
    assert layouts.header(k.types) == texts["structs.h"]


@pytest.mark.parametrize("name", ["5.10", "6.1", "6.12", "7.2"])
def test_a_compiler_agrees_with_the_layouts(name: str) -> None:
    """The assertions in structs.h hold for every kernel that was recorded."""
    text = layouts.header(recorded_kernels.kernel(recorded_kernels.load(name)).types)
    sizes = {"u8": "char", "u16": "short", "u32": "int", "u64": "long long"}
    source = "".join(f"typedef unsigned {c} {short};\n" for short, c in sizes.items()) + text
    ran = subprocess.run(
        ["gcc", "-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-"], input=source, text=True, capture_output=True
    )
    assert ran.returncode == 0, ran.stderr
    assert text.count("_Static_assert") >= 75
