# SPDX-License-Identifier: Apache-2.0
"""The kernel modules that rules of the tests need. Load them first: probes are attached only to loaded functions."""

from __future__ import annotations

import os
import subprocess
import sys

RANDOM_RULES = """xt_TRACE nf_log_syslog nf_log_ipv4 nf_log_ipv6 xt_conntrack xt_comment xt_multiport xt_mark xt_statistic
    xt_limit xt_addrtype xt_length xt_pkttype xt_tcpudp xt_hashlimit xt_recent xt_connmark xt_nat xt_MASQUERADE xt_REDIRECT
    ipt_REJECT ip6t_REJECT xt_LOG xt_hl xt_physdev xt_state xt_CT xt_DSCP xt_dscp xt_set ip_set_hash_ip ip_set_hash_ipport
    xt_NFQUEUE nfnetlink_queue xt_NFLOG nfnetlink_log xt_quota xt_iprange xt_connbytes xt_u32 xt_owner iptable_security
    ip6table_security iptable_raw iptable_mangle iptable_nat iptable_filter ip6table_raw ip6table_mangle ip6table_nat
    ip6table_filter"""
"""Modules that random rules may need."""
INCIDENTS = """nf_tables nft_compat nft_chain_nat xt_set ip_set ip_set_hash_ip ip_set_hash_net ip_set_hash_ipport
    ip_set_hash_ipportip ip_set_bitmap_port ip_vs ip_vs_rr dummy
    nft_fwd_netdev nft_dup_netdev nft_queue"""
"""Modules that the incidents' rules need."""


def load(names: str, anywhere: bool = False) -> None:
    """Loads the modules that this kernel has; ends the program outside the lab, because the tests change network and sysctls.

    Args:
        names: Separated by spaces.
        anywhere: The caller works in namespaces of its own, so it may run on any machine.
    """
    if not anywhere and "LAB_KERNEL" not in os.environ:
        sys.exit("This changes the network of the machine it runs on. Run it in the lab (see the Makefile), or set LAB_KERNEL.")
    for module in names.split():
        subprocess.run(["modprobe", "-q", module], check=False)
