# SPDX-License-Identifier: Apache-2.0
"""An iptables table as text, and the rules that the iptables mode and the ipvs mode both write."""

from __future__ import annotations

from collections.abc import Sequence

KUBE = '-m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
POST = '-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING'
MASQUERADING = {
    "KUBE-MARK-MASQ": ["-j MARK --set-xmark 0x4000/0x4000"],
    "KUBE-POSTROUTING": [
        "-m mark ! --mark 0x4000/0x4000 -j RETURN",
        "-j MARK --set-xmark 0x4000/0x0",
        '-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully',
    ],
}


def table(name: str, base: Sequence[str], chains: dict[str, list[str]]) -> str:
    """The table as iptables-save prints it. base: its base chains."""
    heads = [f":{c} {'ACCEPT' if c in base else '-'} [0:0]" for c in chains]
    return "\n".join([f"*{name}", *heads, *(f"-A {c} {rule}" for c, rules in chains.items() for rule in rules), "COMMIT", ""])
