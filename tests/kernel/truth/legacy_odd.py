# SPDX-License-Identifier: Apache-2.0
"""Rules of legacy iptables that other random rules do not have: matches that drop packets or change their mark, and copies."""

from __future__ import annotations

import random

from scenes.topology import CLIENT4, CLIENT6, PODS
from tests.kernel.truth.packets import PORTS

MODULES = """xt_socket xt_sctp xt_dccp xt_esp xt_tcpmss xt_connlimit xt_ecn ipt_ah ip6t_ah ip6t_frag ip6t_rt ip6t_hbh
    ip6t_ipv6header xt_TEE"""
"""Modules that these rules need beside those of tests/kernel/modules.py."""

MARKER = "-m comment --comment marker"
"""The match of a rule that only counts."""


def match(rng: random.Random, chain: str, v6: bool) -> str:
    """The match of such a rule."""
    inverted = rng.choice(("", "! "))
    port = rng.choice(PORTS)
    kinds = [
        f"-p sctp -m sctp {inverted}--dport {port}",
        f"-p sctp -m multiport {inverted}--dports {port},1000",
        f"-p dccp -m dccp {inverted}--dport {port}",
        f"-p dccp -m multiport {inverted}--ports {port}",
        f"-p udplite -m multiport {inverted}--dports {port}",
        f"-p esp -m esp {inverted}--espspi 0:1000000",
        f"-p tcp -m tcp {inverted}--tcp-option 2",
        f"-p tcp -m tcp --dport {port} {inverted}--tcp-option {rng.choice((2, 4))}",
        f"-p tcp -m tcp --tcp-flags SYN,RST SYN -m tcpmss {inverted}--mss 1000:1500",
        f"-m connlimit --connlimit-upto {rng.choice((0, 1000))}",
        f"-p tcp -m ecn {inverted}--ecn-tcp-ece",
    ]
    if v6:
        kinds += [
            f"-m ah {inverted}--ahspi 0:1000000", "-m frag --fragfirst", "-m rt --rt-type 253", "-m dst --dst-len 8",
            "-m hbh --hbh-len 8", f"-m ipv6header --soft {inverted}--header {rng.choice(('dst', 'route', 'auth', 'prot'))}",
        ]  # fmt: skip
    else:
        kinds += [f"-p ah -m ah {inverted}--ahspi 0:1000000"] * 2
    if chain in ("PREROUTING", "INPUT"):
        kinds += ["-m socket --restore-skmark", "-m socket --nowildcard --restore-skmark -m mark --mark 0x1/0x1"] * 3
    return rng.choice(kinds)


def copies(rng: random.Random, hook: str, v6: bool) -> list[str]:
    """Sometimes a rule that sends a copy through OUTPUT and POSTROUTING, to a machine that does not forward.

    Only where the original has not come to POSTROUTING: there, places of both have the same name, in order of time. And not for
    a bridged packet in FORWARD: its copy counts as bridged, so its POSTROUTING has the name of that run, and lies within it.
    """
    if hook not in ("PREROUTING", "INPUT", "FORWARD") or rng.random() < 0.7:
        return []
    gateway = rng.choice((CLIENT6, PODS[0].addr6) if v6 else (CLIENT4, PODS[0].addr4))
    condition = rng.choice((MARKER, "-p udp", "-p tcp", f"-m mark {rng.choice(('', '! '))}--mark 0x1/0x1"))
    routed = "! -i cni0 " * (hook == "FORWARD")
    return [f"-A {hook} {routed}{condition} -j TEE --gateway {gateway}"]
