# SPDX-License-Identifier: Apache-2.0
"""The kernel structures that `bpf/` reads, and the header that declares only these fields at their real offsets.

A row has a structure, the module with its BTF if vmlinux has none, and the fields. A dotted path goes into embedded
structures and becomes one flat name (`ns.inum` is `ns_inum` in C). Absent fields are omitted, and HAVE_struct_field is only
defined for existing fields: C tests presence, never a version. The layout of bit fields depends on the compiler, so a bit
field is declared by numbers only: its byte, shift and width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.errors import NoBtf
from tracer.kernel.btf import ARRAY, PTR, KernelTypes
from tracer.kernel.module_layouts_5_10 import Field


@dataclass(frozen=True)
class StructLayout:
    struct: str
    fields: str
    module: str = ""
    needed: bool = True


LAYOUTS = (
    StructLayout(
        "sk_buff",
        "head data len tail end network_header transport_header inner_network_header protocol dev sk mark skb_iif _nfct"
        " _skb_refdst",
    ),
    StructLayout("skb_shared_info", "nr_frags frags", needed=False),
    StructLayout("page", "flags", needed=False),
    StructLayout("net_device", "ifindex flags name nd_net.net index_hlist"),
    StructLayout(
        "net", "ns.inum dev_index_head net_cookie nft.base_seq gen ipv4.sysctl_tcp_syncookies ipv4.sysctl_max_syn_backlog"
    ),
    StructLayout("nf_hook_state", "hook pf in out net"),
    StructLayout(
        "sock",
        "__sk_common.skc_net.net __sk_common.skc_family __sk_common.skc_state __sk_common.skc_listener sk_socket sk_filter"
        " __sk_common.skc_daddr __sk_common.skc_dport __sk_common.skc_v6_daddr"
        " __sk_common.skc_num __sk_common.skc_rcv_saddr __sk_common.skc_v6_rcv_saddr"
        " sk_cgrp_data.cgroup sk_ack_backlog sk_max_ack_backlog",
    ),
    StructLayout("inet_connection_sock", "icsk_accept_queue.qlen.counter"),
    StructLayout("tcp_timewait_sock", "tw_ts_recent tw_ts_recent_stamp", needed=False),
    StructLayout("inet_timewait_sock", "tw_substate", needed=False),
    StructLayout("neighbour", "nud_state primary_key tbl", needed=False),
    StructLayout("neigh_table", "family", needed=False),
    StructLayout("dst_entry", "error", needed=False),
    # The pointer has a field of its own since 5.15: kernel commit 8520e224f547 ("bpf, cgroups: Fix cgroup v2 fallback on v1/v2
    # mixed mode"). Before, it shares a number with other data.
    StructLayout("cgroup", "kn", needed=False),
    StructLayout("kernfs_node", "id", needed=False),
    StructLayout("socket", "file"),
    StructLayout("file", "f_inode"),
    StructLayout("inode", "i_ino"),
    StructLayout("nf_conn", "tuplehash status zone.id ct_net.net ext", "nf_conntrack", needed=False),
    StructLayout("nf_conntrack_tuple_hash", "tuple", "nf_conntrack", needed=False),
    StructLayout(
        "nf_conntrack_tuple",
        "src.u3 src.u.all src.l3num dst.u3 dst.u.all dst.protonum",
        "nf_conntrack",
        needed=False,
    ),
    StructLayout("nf_ct_ext", "offset", "nf_conntrack", needed=False),
    StructLayout("nf_conn_nat", "masq_index", "nf_nat", needed=False),
    StructLayout("ip_vs_conn", "af daf caddr vaddr daddr cport vport dport protocol flags ipvs dest", "ip_vs", needed=False),
    StructLayout("ip_vs_service", "af protocol addr port fwmark flags scheduler", "ip_vs", needed=False),
    StructLayout("ip_vs_dest", "svc", "ip_vs", needed=False),
    StructLayout("ip_vs_scheduler", "name", "ip_vs", needed=False),
    StructLayout("netns_ipvs", "net", "ip_vs", needed=False),
    StructLayout("nf_queue_entry", "skb id state.hook", needed=False),
    StructLayout("nfqnl_instance", "queue_num queue_maxlen queue_total rcu rwork", "nfnetlink_queue", needed=False),
    StructLayout("xt_table", "name private priority", "x_tables", needed=False),
    StructLayout("xt_table_info", "jumpstack entries", "x_tables", needed=False),
    StructLayout("xt_action_param", "matchinfo hotdrop", "x_tables", needed=False),
    StructLayout("nft_pktinfo", "skb state xt.state", "nf_tables", needed=False),
    StructLayout("nft_chain", "table name handle", "nf_tables", needed=False),
    StructLayout("nft_base_chain", "ops.priority policy chain", "nf_tables", needed=False),
    StructLayout("nft_table", "name handle family", "nf_tables", needed=False),
    StructLayout("nft_traceinfo", "pkt basechain rule verdict", "nf_tables", needed=False),
    StructLayout("nft_verdict", "code chain", "nf_tables", needed=False),
    StructLayout("nft_rule_dp", "handle", "nf_tables", needed=False),
    StructLayout("nft_rule", "handle", "nf_tables", needed=False),
    StructLayout("nftables_pernet", "base_seq", "nf_tables", needed=False),
    StructLayout("hlist_head", "first", needed=False),
    StructLayout("hlist_node", "next", needed=False),
    StructLayout("bpf_prog", "aux active", needed=False),
    StructLayout("bpf_prog_aux", "id", needed=False),
    # Where a program redirects a packet to: of the running task since 6.11, kernel commit 401cb7dae813 ("net: Reference
    # bpf_redirect_info via task_struct on PREEMPT_RT."); before, of the CPU.
    StructLayout("task_struct", "bpf_net_context", needed=False),
    StructLayout("bpf_net_context", "ri.tgt_index ri.flags ri.map_id", needed=False),
    StructLayout("bpf_redirect_info", "tgt_index flags map_id map", needed=False),
    StructLayout("pt_regs", "di si dx cx r8 r9 ax sp bp ip regs pc", needed=False),
)
"""The structures. pt_regs has the fields of x86 and of arm64; each architecture has only its own."""

ENUMERATORS = (
    ("nf_ct_ext_id", "NF_CT_EXT_NAT", "nf_conntrack"),
    ("cgroup_bpf_attach_type", "CGROUP_INET4_CONNECT", ""),
    ("cgroup_bpf_attach_type", "CGROUP_INET6_CONNECT", ""),
    ("cgroup_bpf_attach_type", "CGROUP_UDP4_SENDMSG", ""),
    ("cgroup_bpf_attach_type", "CGROUP_UDP6_SENDMSG", ""),
)

RING = "BPF_MAP_TYPE_RINGBUF"

_INTEGERS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


def header(types: KernelTypes) -> str:
    """The text of structs.h for this kernel.

    Raises:
        NoBtf: BTF does not describe a structure that every run needs, or the kernel has no ring buffer.
    """
    maps = types.vmlinux.enumerators("bpf_map_type")
    if maps and RING not in maps:
        raise NoBtf(f"This kernel's BPF has no ring buffer ({RING}, Linux 5.8), which tracing needs.")
    parts: list[str] = []
    pointed: set[str] = set()
    for row in LAYOUTS:
        fields = dict(_present(row, types))
        size = _size(row, types)
        if not fields or size is None:
            if row.needed:
                raise NoBtf(f"This kernel's BTF does not describe struct {row.struct}, which tracing needs.")
            continue
        pointed.update(f.target for f in fields.values() if f.target)
        parts.append(_struct(row.struct, fields, size))
    for enum, name, module in ENUMERATORS:
        value = (types.module(module) or types.vmlinux).enumerators(enum).get(name)
        if value is not None:
            parts.append(f"#define ENUM_{name} {value}\n")
    return "".join(f"struct {name};\n" for name in sorted(pointed)) + "".join(parts)


def _present(row: StructLayout, types: KernelTypes) -> Iterator[tuple[str, Field]]:
    for path in row.fields.split():
        for source in types.layout_sources(row.module):
            field = source.field(row.struct, path)
            if field:
                yield path.replace(".", "_"), field
                break


def _size(row: StructLayout, types: KernelTypes) -> int | None:
    for source in types.layout_sources(row.module):
        size = source.structure_size(row.struct)
        if size:
            return size
    return None


def _declare(name: str, field: Field) -> str:
    if field.kind == PTR:
        return f"struct {field.target} *{name}" if field.target else f"void *{name}"
    if field.kind == ARRAY and field.element:
        return f"{_INTEGERS[field.element]} {name}[{field.size // field.element}]"
    kind = None if field.kind == ARRAY else _INTEGERS.get(field.size)
    return f"{kind} {name}" if kind else f"u8 {name}[{field.size}]"


def _struct(name: str, fields: dict[str, Field], size: int) -> str:
    """Declares one structure: its fields in order of offset, padding between them, and an assertion for each offset."""
    lines, end = [], 0
    bit_fields = {field: at for field, at in fields.items() if at.width}
    fields = {field: at for field, at in fields.items() if not at.width}
    for field, at in sorted(fields.items(), key=lambda item: item[1].offset):
        if at.offset > end:
            lines.append(f"    u8 before_{field}[{at.offset - end}];\n")
        lines.append(f"    {_declare(field, at)};\n")
        end = at.offset + at.size
    facts = "".join(
        f'_Static_assert(__builtin_offsetof(struct {name}, {field}) == {at.offset}, "{name}.{field}");\n'
        f"#define HAVE_{name}_{field}\n#define OFFSET_{name}_{field} {at.offset}\n"
        for field, at in fields.items()
    ) + "".join(
        f"#define HAVE_{name}_{field}\n#define OFFSET_{name}_{field} {at.offset}\n"
        f"#define SHIFT_{name}_{field} {at.shift}\n#define WIDTH_{name}_{field} {at.width}\n"
        for field, at in bit_fields.items()
    )
    return f"struct {name} {{\n{''.join(lines)}}};\n#define HAVE_{name}\n#define SIZEOF_{name} {size}\n{facts}"
