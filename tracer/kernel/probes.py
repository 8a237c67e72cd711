# SPDX-License-Identifier: Apache-2.0
"""The probe table: one row for each probed place in the kernel.

A row has the functions to try in order, the point (entry or return), the arguments that its C code needs, and what is lost
without it. Arguments are given by type, because positions differ between kernels: "sk_buff *" is the first parameter of that
type, "sk_buff *#2" the second; "|" separates alternatives. The C code is `NAME_entered` or `NAME_returned` in `bpf/`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Probe:
    """One row.

    Attributes:
        name: Name of the row and of its C functions.
        symbols: Functions to try in order.
        at: ENTRY, RETURN or TRACEPOINT.
        args: Types of the arguments, in the order of the C code.
        shows: What the probe shows, as a noun phrase for messages.
        fallback: Positions of those arguments, from 1, for a kernel without BTF of the function's module.
        module: Module of the function, "" = the kernel itself.
        needed: A run is not possible without it.
        verbose: Only attached if every hook is shown.
        rules: Only attached if rules are resolved.
        lookups: Only attached if a program of sk_lookup is attached in any network namespace.
        programs: Only attached if eBPF programs are attached to interfaces when a run starts.
        typed: The arguments are pointers of known type; False = they are numbers, so what they point to is copied.
        requires: Structures that must be described by BTF.
        like: Row with the same C code; its program is compiled once for both, where both are attached in the same way.
    """

    name: str
    symbols: tuple[str, ...]
    at: str
    args: tuple[str, ...]
    shows: str
    fallback: tuple[int, ...] = ()
    module: str = ""
    needed: bool = False
    verbose: bool = False
    rules: bool = False
    lookups: bool = False
    programs: bool = False
    typed: bool = True
    requires: tuple[str, ...] = field(default=())
    like: str = ""


ENTRY, RETURN, TRACEPOINT = "entry", "return", "tracepoint"
U64 = "long long unsigned int"
"""Type of the arguments of a helper function of BPF."""

PROBES = (
    Probe("hook", ("nf_hook_slow",), RETURN, ("sk_buff *", "nf_hook_state *"), "netfilter hooks and their verdicts",
          needed=True),
    # The table became the first argument, as `void *priv`, in 5.16: kernel commit 8844e01062dd ("netfilter: iptables:
    # allow use of ipt_do_table as hookfn").
    Probe("table4", ("ipt_do_table",), RETURN, ("sk_buff *", "nf_hook_state *", "xt_table *|void *"),
          "iptables tables and their verdicts", (1, 2, 3), "ip_tables", requires=("xt_table",)),
    Probe("table6", ("ip6t_do_table",), RETURN, ("sk_buff *", "nf_hook_state *", "xt_table *|void *"),
          "ip6tables tables and their verdicts", (1, 2, 3), "ip6_tables", requires=("xt_table",), like="table4"),
    Probe("table4_begin", ("ipt_do_table",), ENTRY, ("sk_buff *", "xt_table *|void *"),
          "rules of iptables that acted", (1, 3), "ip_tables", rules=True,
          requires=("xt_table", "xt_table_info", "xt_action_param")),
    Probe("table6_begin", ("ip6t_do_table",), ENTRY, ("sk_buff *", "xt_table *|void *"),
          "rules of ip6tables that acted", (1, 3), "ip6_tables", rules=True,
          requires=("xt_table", "xt_table_info", "xt_action_param"), like="table4_begin"),
    Probe("table_found", ("xt_find_table_lock",), RETURN, ("net *", "unsigned char"), "generations of iptables rules",
          (1, 2), "x_tables", rules=True, requires=("xt_table",)),
    Probe("table_replaced", ("xt_replace_table",), RETURN, ("xt_table *",), "replacements of iptables rules",
          (1,), "x_tables", rules=True, requires=("xt_table",)),
    Probe("chain", ("nft_do_chain",), RETURN, ("nft_pktinfo *", "void *"),
          "nftables base chains and their verdicts", (1, 2), "nf_tables", requires=("nft_pktinfo", "nft_chain", "nft_table")),
    # Called for every rule that matched once nft_trace_enabled is on (tracer/rules/nftables/trace_key.py). The trace info held
    # packet, verdict and rule until 6.4 ("netfilter: nf_tables: don't store pktinfo in traceinfo structure" and the commits
    # after it); rules are made of nft_rule_dp since 5.17 ("netfilter: nf_tables: add rule blob layout").
    Probe("nft_rule", ("__nft_trace_packet",), ENTRY,
          ("nft_traceinfo *", "nft_pktinfo *|", "nft_verdict *|", "nft_rule_dp *|nft_rule *|", "enum nft_trace_types"),
          "which rule of nftables decided", (1, 0, 0, 0, 3), "nf_tables",
          rules=True, requires=("nft_pktinfo", "nft_chain", "nft_table", "nft_traceinfo", "nft_verdict", "nft_base_chain")),
    # These send the packet on before __nft_trace_packet is called.
    Probe("nft_fwd", ("nft_fwd_netdev_eval",), ENTRY, ("nft_pktinfo *",), "packets that `fwd` of nftables takes over", (3,),
          "nft_fwd_netdev", rules=True, requires=("nft_pktinfo", "nft_chain", "nft_table")),
    Probe("nft_fwd_to", ("nft_fwd_neigh_eval",), ENTRY, ("nft_pktinfo *",), "packets that `fwd to` of nftables takes over",
          (3,), "nft_fwd_netdev", rules=True, requires=("nft_pktinfo", "nft_chain", "nft_table"), like="nft_fwd"),
    Probe("nat", ("nf_nat_manip_pkt",), ENTRY, ("sk_buff *", "nf_conn *", "enum nf_nat_manip_type", "enum ip_conntrack_dir"),
          "address translation, before and after", (1, 2, 3, 4), "nf_nat", requires=("nf_conn",)),
    # nf_nat_ipv4_fn became static, and mostly inlined into its callers, with kernel commit 3bf195ae6037 ("netfilter: nat:
    # merge nf_nat_ipv4,6 into nat core", 5.1); its callers now call nf_nat_inet_fn.
    Probe("nat_hook", ("nf_nat_ipv4_fn", "nf_nat_inet_fn"), RETURN, ("sk_buff *", "nf_hook_state *"),
          "every call of NAT", (2, 3), "nf_nat", verbose=True, requires=("nf_conn",)),
    Probe("ipvs_schedule", ("ip_vs_schedule",), RETURN, ("ip_vs_service *", "sk_buff *"), "which real servers IPVS chose",
          (1, 2), "ip_vs", requires=("ip_vs_conn", "ip_vs_service")),
    Probe("ipvs_nat4", ("ip_vs_nat_xmit",), ENTRY, ("sk_buff *", "ip_vs_conn *"), "packets that IPVS sends to a real server",
          (1, 2), "ip_vs", requires=("ip_vs_conn", "ip_vs_service")),
    Probe("ipvs_nat6", ("ip_vs_nat_xmit_v6",), ENTRY, ("sk_buff *", "ip_vs_conn *"),
          "packets that IPVS sends to a real server (IPv6)", (1, 2), "ip_vs", requires=("ip_vs_conn", "ip_vs_service"),
          like="ipvs_nat4"),
    Probe("ipvs_reply", ("handle_response",), ENTRY, ("sk_buff *", "ip_vs_conn *", "unsigned int"), "answers through IPVS",
          (2, 4, 6), "ip_vs", requires=("ip_vs_conn", "ip_vs_service")),
    Probe("ipvs_leave", ("ip_vs_leave",), RETURN, ("ip_vs_service *", "sk_buff *"), "virtual servers without a real server",
          (1, 2), "ip_vs", requires=("ip_vs_conn", "ip_vs_service")),
    # Until 5.16 each hook and family had its own wrapper of ip_vs_in (kernel: "netfilter: ipvs: remove unneeded input
    # wrappers").
    Probe("ipvs_in", ("ip_vs_in_hook", "ip_vs_in"), RETURN, ("sk_buff *",), "packets that IPVS drops",
          (3,), "ip_vs", requires=("ip_vs_conn", "ip_vs_service")),
    Probe("unreach4", ("nf_send_unreach",), ENTRY, ("sk_buff *", "int"), "REJECT with an ICMP error", (1, 2), "nf_reject_ipv4"),
    Probe("unreach6", ("nf_send_unreach6",), ENTRY, ("sk_buff *", "unsigned char"), "REJECT with an ICMPv6 error",
          (2, 3), "nf_reject_ipv6", like="unreach4"),
    # The packet was the second argument until a socket was added before it ("netfilter: use actual socket sk for REJECT
    # action", 5.11, in 5.10 by a stable update). Without BTF it may be either argument.
    Probe("reset4", ("nf_send_reset",), ENTRY, ("sk_buff *", "sk_buff *#2|"), "REJECT with a TCP reset", (2, 3),
          "nf_reject_ipv4"),
    Probe("reset6", ("nf_send_reset6",), ENTRY, ("sk_buff *", "sk_buff *#2|"), "REJECT with a TCP reset (IPv6)", (2, 3),
          "nf_reject_ipv6", like="reset4"),
    Probe("socket", ("sk_filter_trim_cap",), ENTRY, ("sock *", "sk_buff *"), "arrival at a socket, and its process"),
    # Called where a program is attached, and nowhere else. In newer kernels the address has a type of its own.
    Probe("connect", ("__cgroup_bpf_run_filter_sock_addr",), ENTRY,
          ("sock *", "sockaddr *|sockaddr_unsized *", "enum cgroup_bpf_attach_type|enum bpf_attach_type"),
          "addresses that eBPF programs replace at connect() and sendmsg()"),
    Probe("replaced", ("__cgroup_bpf_run_filter_sock_addr",), RETURN,
          ("sock *", "sockaddr *|sockaddr_unsized *", "enum cgroup_bpf_attach_type|enum bpf_attach_type"),
          "addresses that eBPF programs replace at sendmsg()"),
    # Called while a program is attached anywhere. Until 6.6 its code was inlined ("net: remove duplicate sk_lookup helpers").
    Probe("lookup4", ("inet_lookup_run_sk_lookup",), RETURN, ("sk_buff *",), "what eBPF programs of sk_lookup decide",
          lookups=True),
    Probe("lookup6", ("inet6_lookup_run_sk_lookup",), RETURN, ("sk_buff *",), "what eBPF programs of sk_lookup decide (IPv6)",
          lookups=True, like="lookup4"),
    Probe("synack4", ("tcp_v4_send_synack",), ENTRY, ("sk_buff *",), "whether a SYN-ACK answered a SYN"),
    Probe("synack6", ("tcp_v6_send_synack",), ENTRY, ("sk_buff *",), "whether a SYN-ACK answered a SYN (IPv6)", like="synack4"),
    Probe("syn", ("tcp_conn_request",), RETURN, ("sock *", "sk_buff *"), "SYNs at their listener, and its queues"),
    Probe("cookie4", ("cookie_v4_init_sequence",), ENTRY, ("sk_buff *",), "whether a SYN was answered with a cookie"),
    Probe("cookie6", ("cookie_v6_init_sequence",), ENTRY, ("sk_buff *",), "whether a SYN was answered with a cookie (IPv6)",
          like="cookie4"),
    Probe("accept4", ("tcp_v4_syn_recv_sock",), RETURN, ("sock *", "sk_buff *", "_Bool *|"),
          "the handshake's end, and the accept queue"),
    Probe("accept6", ("tcp_v6_syn_recv_sock",), RETURN, ("sock *", "sk_buff *", "_Bool *|"), "the handshake's end (IPv6)",
          like="accept4"),
    # Its flag shows whether another segment was first: kernel commit e0f9759f530b ("tcp: try to keep packet if SYN_RCV race
    # is lost", 4.16).
    Probe("request", ("tcp_check_req",), RETURN, ("sock *", "sk_buff *", "_Bool *|"), "segments at half-open connections"),
    Probe("listener", ("tcp_conn_request",), ENTRY, ("sock *", "sk_buff *"), "why a listener drops a SYN"),
    Probe("time_wait", ("tcp_timewait_state_process",), RETURN, ("inet_timewait_sock *", "sk_buff *"),
          "SYNs that hit a connection in TIME_WAIT"),
    Probe("answer_reset4", ("tcp_v4_send_reset",), ENTRY, ("sock *", "sk_buff *", "enum sk_rst_reason|"), "who sent a reset"),
    Probe("answer_reset6", ("tcp_v6_send_reset",), ENTRY, ("sock *", "sk_buff *", "enum sk_rst_reason|"),
          "who sent a reset (IPv6)", like="answer_reset4"),
    Probe("neighbour", ("__neigh_event_send",), ENTRY, ("neighbour *", "sk_buff *"), "packets that wait for a neighbour"),
    Probe("no_route", ("ip_error",), ENTRY, ("sk_buff *",), "what kind of route dropped a packet"),
    # The callers of nfqnl_reinject (bpf/probes/nfqueue.h), which begins later in a packet's way than they do.
    Probe("queue_verdict", ("nfqnl_recv_verdict",), ENTRY, ("sk_buff *",), "who gives a packet back from a queue (NFQUEUE)",
          (3,), "nfnetlink_queue"),
    Probe("queue_verdicts", ("nfqnl_recv_verdict_batch",), ENTRY, ("sk_buff *",),
          "who gives a packet back from a queue (NFQUEUE)", (3,), "nfnetlink_queue", like="queue_verdict"),
    Probe("queue_emptied", ("instance_destroy_work", "instance_destroy_rcu"), ENTRY, ("work_struct *|callback_head *",),
          "who gives a packet back from a queue (NFQUEUE)", (1,), "nfnetlink_queue",
          requires=("nfqnl_instance",)),
    Probe("queue_device", ("nfqnl_rcv_dev_event",), ENTRY, ("notifier_block *",),
          "who gives a packet back from a queue (NFQUEUE)", (1,), "nfnetlink_queue"),
    Probe("queue_unhooked", ("nfqnl_nf_hook_drop",), ENTRY, ("net *",),
          "who gives a packet back from a queue (NFQUEUE)", (1,), "nfnetlink_queue"),
    Probe("queued", ("__nfqnl_enqueue_packet",), ENTRY, ("nfqnl_instance *", "nf_queue_entry *"),
          "packets that wait in a queue (NFQUEUE)", (2, 3), "nfnetlink_queue", requires=("nf_queue_entry", "nfqnl_instance")),
    Probe("queue_refused", ("nfqnl_enqueue_packet",), RETURN, ("nf_queue_entry *", "unsigned int"),
          "why a queue (NFQUEUE) does not take a packet", (1, 2), "nfnetlink_queue",
          requires=("nf_queue_entry", "nfqnl_instance")),
    # Since kernel commit ee04805ff54a ("netfilter: conntrack: make conntrack userspace helpers work again"): it gets the
    # answer itself. nf_reinject, which it calls or contains, may get NF_DROP from conntrack instead.
    Probe("queue_answer", ("nfqnl_reinject",), ENTRY, ("nf_queue_entry *", "unsigned int"),
          "what the process behind a queue (NFQUEUE) answered", (1, 2), "nfnetlink_queue",
          requires=("nf_queue_entry", "nfqnl_instance")),
    # Beside the kernel log, the only sign of a full table; the packet is not among the arguments.
    Probe("table_full", ("early_drop",), RETURN, ("net *",), "whether conntrack's table was full", (1,), "nf_conntrack"),
    Probe("confirm", ("__nf_conntrack_confirm",), RETURN, ("sk_buff *",), "insertions into conntrack's table that lost a race",
          (1,), "nf_conntrack", requires=("nf_conn",)),
    Probe("drop", ("kfree_skb",), TRACEPOINT, ("sk_buff *", "void *", "enum skb_drop_reason|"), "drops, with place and reason",
          needed=True),
    Probe("clone", ("skb_clone",), RETURN, ("sk_buff *",), "copies of followed packets"),
    Probe("copy", ("skb_copy",), RETURN, ("sk_buff *",), "copies of followed packets", like="clone"),
    Probe("pcopy", ("__pskb_copy_fclone",), RETURN, ("sk_buff *",), "copies of followed packets", like="clone"),
    Probe("tap", ("packet_rcv",), ENTRY, ("sk_buff *",), "which copies were made for packet sockets"),
    Probe("tap_ring", ("tpacket_rcv",), ENTRY, ("sk_buff *",), "which copies were made for packet sockets", like="tap"),
    # What programs of tc and XDP do beside dropping: docs/programs.md. The first two see packets before and behind those at
    # ingress, the next two at egress.
    Probe("arrival", ("netif_receive_skb",), TRACEPOINT, ("sk_buff *",), "packets before programs at ingress",
          programs=True),
    Probe("hook_begin", ("nf_hook_slow",), ENTRY, ("sk_buff *", "nf_hook_state *"), "packets that programs at ingress rewrite",
          programs=True),
    Probe("transmit", ("__dev_queue_xmit",), ENTRY, ("sk_buff *",), "packets before programs at egress",
          programs=True),
    Probe("outgoing", ("net_dev_queue",), TRACEPOINT, ("sk_buff *",), "packets that programs at egress rewrite",
          programs=True),
    Probe("redirect", ("skb_do_redirect",), ENTRY, ("sk_buff *",), "packets that programs of tc redirect",
          programs=True),
    Probe("clone_redirect", ("bpf_clone_redirect",), ENTRY, (U64, f"{U64}#2", f"{U64}#3"),
          "copies of packets that programs of tc redirect", programs=True, typed=False),
    Probe("xdp_redirect", ("xdp_do_generic_redirect",), ENTRY, ("sk_buff *", "bpf_prog *"),
          "packets that programs of generic XDP redirect", programs=True),
)  # fmt: skip
"""Rows in the order in which a packet may meet them. The index of a row is its number in the counters of missed returns."""
