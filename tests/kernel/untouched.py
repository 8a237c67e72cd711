# SPDX-License-Identifier: Apache-2.0
"""Reads the state of the node that a run must leave unchanged."""

from __future__ import annotations

import subprocess
import time


def state() -> dict[str, str]:
    """The state by name: rules (without counters), namespaces, BPF programs, maps and links, kprobes, sysctls, modules."""
    commands = {
        "iptables": "iptables-legacy-save | grep -v '^#' | sed 's/\\[[0-9:]*\\]//'",
        "ip6tables": "ip6tables-legacy-save | grep -v '^#' | sed 's/\\[[0-9:]*\\]//'",
        "nft": "nft -a -s list ruleset",
        "iptables-nft": "(iptables-nft-save; ip6tables-nft-save) | grep -v '^#' | sed 's/\\[[0-9:]*\\]//'",
        "namespaces": "ip netns; lsns -t net -n -o NS,PATH | sort",
        "programs": "bpftool prog show | grep -c '' || true",
        "maps": "bpftool map show | grep -c '' || true",
        "links": "bpftool link show | grep -c '' || true",
        "kprobes": "cat /sys/kernel/tracing/kprobe_events",
        "sysctls": "sysctl -a 2>/dev/null"
        " | grep -E '^net\\.(ipv4\\.(ip_forward|tcp_|conf\\.all)|netfilter\\.nf_log|core\\.bpf)'",
        "modules": "lsmod | cut -d' ' -f1 | sort",
    }
    return {k: subprocess.run(c, shell=True, capture_output=True, text=True).stdout for k, c in commands.items()}


def settled(before: dict[str, str]) -> dict[str, str]:
    """The state now. Waits up to 30 s for it to equal `before`: the kernel frees some things later than a process ends."""
    until = time.monotonic() + 30
    while (now := state()) != before and time.monotonic() < until:
        time.sleep(0.5)
    return now
