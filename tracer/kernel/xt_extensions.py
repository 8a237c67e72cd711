# SPDX-License-Identifier: Apache-2.0
"""The match and target functions of legacy iptables that are watched, and their programs.

A row has a match or target as in rules (name and revision), and its function. The functions are called through pointers,
with (skb, par), so each has a symbol of its own; no rule uses functions of modules that are not loaded. Matches that can be
computed from the packet and its connection (tracer/rules/iptables/matches.py) are not watched: they are most of the matches in
kube-proxy's rules, and this saves a call for each evaluated rule. Match conntrack is watched where the kernel does not describe
its connections, so that it cannot be computed.

All functions share the programs, which are loaded once for each function with fentry: by fentry one for matches and one for
targets; by kprobes entry of a match, return of a match, entry of a target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.kernel.attach_plan import KernelAbilities
from tracer.kernel.btf import KernelTypes
from tracer.kernel.kallsyms import Symbols

MATCHES = """
    addrtype/0 addrtype_mt_v0, addrtype/1 addrtype_mt_v1, ah ah_mt|ah_mt6, bpf/0 bpf_mt, bpf/1 bpf_mt_v1,
    cgroup/0 cgroup_mt_v0, cgroup/1 cgroup_mt_v1, cgroup/2 cgroup_mt_v2, cluster xt_cluster_mt, connbytes connbytes_mt,
    connlabel connlabel_mt, connlimit/1 connlimit_mt, connmark/1 connmark_mt, cpu cpu_mt, dccp dccp_mt, devgroup devgroup_mt,
    dscp dscp_mt|dscp_mt6, dst hbh_mt6, ecn ecn_mt4|ecn_mt6, esp esp_mt, eui64 eui64_mt6, frag frag_mt6,
    hashlimit/1 hashlimit_mt_v1,
    hashlimit/2 hashlimit_mt_v2, hashlimit/3 hashlimit_mt, hbh hbh_mt6, helper helper_mt, hl hl_mt6,
    iprange/1 iprange_mt4|iprange_mt6, ipcomp comp_mt, ipv6header ipv6header_mt6, ipvs ipvs_mt, l2tp l2tp_mt4|l2tp_mt6,
    length length_mt|length_mt6, limit limit_mt, mac mac_mt, mh mh_mt6, nfacct/0 nfacct_mt, nfacct/1 nfacct_mt,
    osf xt_osf_match_packet,
    owner/1 owner_mt, physdev physdev_mt, pkttype pkttype_mt, policy policy_mt, quota quota_mt, rateest xt_rateest_mt,
    realm realm_mt, recent/0 recent_mt, recent/1 recent_mt, rpfilter rpfilter_mt, rt rt_mt6, sctp sctp_mt,
    set/0 set_match_v0, set/1 set_match_v1, set/2 set_match_v1, set/3 set_match_v3, set/4 set_match_v4,
    socket/0 socket_mt4_v0, socket/1 socket_mt4_v1_v2_v3|socket_mt6_v1_v2_v3, socket/2 socket_mt4_v1_v2_v3|socket_mt6_v1_v2_v3,
    socket/3 socket_mt4_v1_v2_v3|socket_mt6_v1_v2_v3, srh/0 srh_mt6, srh/1 srh1_mt6, state state_mt, statistic statistic_mt,
    string/1 string_mt, tcpmss tcpmss_mt, time time_mt, tos/1 tos_mt, ttl ttl_mt, u32 u32_mt
"""
CONNTRACK = "conntrack/1 conntrack_mt_v1, conntrack/2 conntrack_mt_v2, conntrack/3 conntrack_mt_v3"
TARGETS = """
    AUDIT/0 audit_tg, CHECKSUM checksum_tg, CLASSIFY classify_tg, CONNMARK/1 connmark_tg, CONNMARK/2 connmark_tg_v2,
    CONNSECMARK connsecmark_tg, CT/0 xt_ct_target_v0, CT/1 xt_ct_target_v1, CT/2 xt_ct_target_v1,
    DNAT/0 xt_dnat_target_v0, DNAT/1 xt_dnat_target_v1, DNAT/2 xt_dnat_target_v2, DNPT ip6t_dnpt_tg, DSCP dscp_tg|dscp_tg6,
    ECN ecn_tg, HL hl_tg6, HMARK hmark_tg_v4|hmark_tg_v6, IDLETIMER/0 idletimer_tg_target,
    IDLETIMER/1 idletimer_tg_target_v1, LED led_tg, LOG log_tg, MARK/2 mark_tg, MASQUERADE masquerade_tg|masquerade_tg6,
    NETMAP netmap_tg4|netmap_tg6, NFLOG nflog_tg, NFQUEUE/0 nfqueue_tg, NFQUEUE/1 nfqueue_tg_v1,
    NFQUEUE/2 nfqueue_tg_v2, NFQUEUE/3 nfqueue_tg_v3, NOTRACK notrack_tg, RATEEST xt_rateest_tg,
    REDIRECT redirect_tg4|redirect_tg6, REJECT reject_tg|reject_tg6, SECMARK/0 secmark_tg_v0, SECMARK/1 secmark_tg_v1,
    SET/0 set_target_v0, SET/1 set_target_v1, SET/2 set_target_v2, SET/3 set_target_v3, SNAT/0 xt_snat_target_v0,
    SNAT/1 xt_snat_target_v1, SNAT/2 xt_snat_target_v2, SNPT ip6t_snpt_tg, SYNPROXY synproxy_tg4|synproxy_tg6,
    TCPMSS tcpmss_tg4|tcpmss_tg6, TCPOPTSTRIP tcpoptstrip_tg4|tcpoptstrip_tg6, TEE/1 tee_tg4|tee_tg6,
    TOS tos_tg|tos_tg6, TPROXY/0 tproxy_tg4_v0, TPROXY/1 tproxy_tg4_v1|tproxy_tg6_v1, TRACE trace_tg, TTL ttl_tg
"""
"""NAME[/REVISION] FUNCTION, or FUNCTION of IPv4|FUNCTION of IPv6. CONNTRACK is for kernels that do not describe nf_conn."""

Extension = tuple[str, str, int, str]
"""A match or target as in rules: ("match" or "target", name, revision, family "ip" or "ip6")."""
_ARGUMENTS = ["sk_buff *", "xt_action_param *"]


@dataclass(frozen=True)
class PlannedExtension:
    """A function with a probe.

    Attributes:
        symbol: Name of the function.
        module: Its module.
        programs: (name, way of attaching) of its programs.
        extensions: The matches or targets that it implements.
    """

    symbol: str
    module: str
    programs: tuple[tuple[str, str], ...]
    extensions: tuple[Extension, ...]


def rows(kind: str, text: str) -> Iterator[tuple[str, Extension]]:
    """Yields (function, match or target) of each row of MATCHES or TARGETS."""
    for row in text.split(","):
        name, functions = row.split()
        name, _, revision = name.partition("/")
        for symbol, families in zip(
            functions.split("|"), (("ip",), ("ip6",)) if "|" in functions else (("ip", "ip6"),), strict=True
        ):
            for family in families:
                yield symbol, (kind, name, int(revision or 0), family)


def plan(types: KernelTypes, symbols: Symbols, abilities: KernelAbilities) -> list[PlannedExtension]:
    """The functions that this kernel has now; a function in two modules is omitted if it needs kprobes, which use the name."""
    by_symbol: dict[str, list[Extension]] = {}
    conntrack = () if _describes_connections(types) else rows("match", CONNTRACK)
    for symbol, extension in (*rows("match", MATCHES), *conntrack, *rows("target", TARGETS)):
        by_symbol.setdefault(symbol, []).append(extension)
    watched = []
    for symbol, extensions in by_symbol.items():
        modules = symbols.modules_of(symbol)
        kind = extensions[0][0]
        for module in modules:
            btf = types.module(module)
            found = btf.parameters(symbol) if btf else None
            undescribed = found is None and types.builtin_layouts and module != "vmlinux"
            if not undescribed and [t for _, t in found or ()] != _ARGUMENTS:
                continue
            family = "ip6" if module.startswith("ip6") else "ip"
            own = tuple(e for e in extensions if len(modules) == 1 or e[3] == family)
            if found and (abilities.module_fentry or (abilities.fentry and module == "vmlinux")):
                way = ("on_match_by_fexit", "FEXIT") if kind == "match" else ("on_target_by_fentry", "FENTRY")
                programs: tuple[tuple[str, str], ...] = (way,)
            elif len(modules) > 1:
                continue
            elif kind == "match":
                programs = (("on_match", "KPROBE"), ("on_match_answer", "KRETPROBE"))
            else:
                programs = (("on_target", "KPROBE"),)
            watched.append(PlannedExtension(symbol, module, programs, own))
    return watched


def _describes_connections(types: KernelTypes) -> bool:
    return any(source.structure_size("nf_conn") for source in types.layout_sources("nf_conntrack"))


def header(watched: list[PlannedExtension]) -> str:
    """The text of acts.h: one line for each program."""
    lines = {}
    for row in watched:
        for program, way in row.programs:
            lines[program] = f"{row.extensions[0][0].upper()}_{way}({program})\n"
    return "".join(lines.values()) or "/* nothing is watched */\n"
