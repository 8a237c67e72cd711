# SPDX-License-Identifier: Apache-2.0
"""The rules that Antrea writes on a node: for pods, and for a ClusterNetworkPolicy that is applied to nodes.

Written from antrea-io/antrea pkg/agent/route/route_linux.go and pkg/agent/controller/networkpolicy/node_reconciler_linux.go, of
1.15, 2.2, 2.5 and the main branch of August 2026. Policies of pods are no rules: they are flows of Open vSwitch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

GATEWAY, POD_SET = "antrea-gw0", "ANTREA-POD-IP"
_TARGETS = {"Allow": "ACCEPT", "Drop": "DROP", "Reject": "REJECT"}
_CHAINS = {"ingress": "ANTREA-POL-INGRESS-RULES", "egress": "ANTREA-POL-EGRESS-RULES"}


@dataclass(frozen=True)
class NodeRule:
    """A rule of a ClusterNetworkPolicy.

    Attributes:
        policy: Name of the policy.
        name: Name of the rule.
        action: "Allow", "Drop" or "Reject".
        peer: Address of the other end.
        ports: TCP ports; with several the rule has a chain of its own.
        direction: "ingress" or "egress".
    """

    policy: str
    name: str
    action: str
    peer: str
    ports: tuple[int, ...] = ()
    direction: str = "ingress"

    @property
    def chain(self) -> str:
        """The chain of its ports."""
        return f"ANTREA-POL-{hashlib.sha1(repr(self).encode()).hexdigest()[:16].upper()}"

    def lines(self) -> list[str]:
        """Its rules, as iptables-save prints them."""
        side = "-s" if self.direction == "ingress" else "-d"
        tests = [f"-p tcp -m tcp --dport {port} " for port in self.ports] or [""]
        target = _TARGETS[self.action]
        comment = f"Antrea: for rule {self.name}, policy AntreaClusterNetworkPolicy:{self.policy}"
        head = f"-A {_CHAINS[self.direction]} {side} {self.peer}/32 "
        if len(tests) == 1:
            return [f'{head}{tests[0]}-m comment --comment "{comment}" -j {target}']
        return [f'{head}-m comment --comment "{comment}" -j {self.chain}', *(f"-A {self.chain} {t}-j {target}" for t in tests)]


def saved(rules: Sequence[NodeRule]) -> str:
    """All rules of a node with these rules of policies for nodes, without ipsets."""
    own = [rule.chain for rule in rules if len(rule.ports) > 1]
    chains = ["ANTREA-FORWARD", "ANTREA-INPUT", "ANTREA-OUTPUT", *_CHAINS.values(), "ANTREA-POL-PRE-INGRESS-RULES",
              "ANTREA-POL-PRE-EGRESS-RULES", *own]  # fmt: skip
    lines = ["*filter", *(f":{chain} - [0:0]" for chain in chains)]
    for base, what in (("FORWARD", "forwarding"), ("INPUT", "input"), ("OUTPUT", "output")):
        lines.append(f'-A {base} -m comment --comment "Antrea: jump to Antrea {what} rules" -j ANTREA-{base}')
    lines += [
        f'-A ANTREA-FORWARD -i {GATEWAY} -m comment --comment "Antrea: accept packets from local Pods" -j ACCEPT',
        f'-A ANTREA-FORWARD -o {GATEWAY} -m comment --comment "Antrea: accept packets to local Pods" -j ACCEPT',
    ]
    for direction, base, flag in (("ingress", "INPUT", "-i"), ("egress", "OUTPUT", "-o")):
        before, way = f"ANTREA-POL-PRE-{direction.upper()}-RULES", "from" if direction == "ingress" else "to"
        lines += [
            f'-A ANTREA-{base} -m comment --comment "Antrea: jump to static {direction} NodeNetworkPolicy rules" -j {before}',
            f'-A ANTREA-{base} -m comment --comment "Antrea: jump to {direction} NodeNetworkPolicy rules"'
            f" -j {_CHAINS[direction]}",
            f"-A {before} -m conntrack --ctstate RELATED,ESTABLISHED"
            f' -m comment --comment "Antrea: allow {direction} established or related packets" -j ACCEPT',
            f'-A {before} {flag} lo -m comment --comment "Antrea: allow {direction} packets {way} loopback" -j ACCEPT',
        ]
    lines += [line for rule in rules for line in rule.lines()]
    return "\n".join([*lines, "COMMIT", _POD_RULES])


_POD_RULES = f"""*raw
:ANTREA-PREROUTING - [0:0]
:ANTREA-OUTPUT - [0:0]
-A PREROUTING -m comment --comment "Antrea: jump to Antrea prerouting rules" -j ANTREA-PREROUTING
-A OUTPUT -m comment --comment "Antrea: jump to Antrea output rules" -j ANTREA-OUTPUT
-A ANTREA-PREROUTING -p udp -m comment --comment "Antrea: do not track incoming encapsulation packets" -m udp --dport 6081 -m \
addrtype --dst-type LOCAL -j NOTRACK
-A ANTREA-OUTPUT -p udp -m comment --comment "Antrea: do not track outgoing encapsulation packets" -m udp --dport 6081 -m \
addrtype --src-type LOCAL -j NOTRACK
COMMIT
*mangle
:ANTREA-OUTPUT - [0:0]
-A OUTPUT -m comment --comment "Antrea: jump to Antrea output rules" -j ANTREA-OUTPUT
-A ANTREA-OUTPUT -o {GATEWAY} -m comment --comment "Antrea: mark LOCAL output packets" -m addrtype --src-type LOCAL -j MARK \
--set-xmark 0x80000000/0x80000000
COMMIT
*nat
:ANTREA-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "Antrea: jump to Antrea postrouting rules" -j ANTREA-POSTROUTING
-A ANTREA-POSTROUTING -s 10.10.0.0/24 ! -o {GATEWAY} -m comment --comment "Antrea: masquerade Pod to external packets" \
-j MASQUERADE --random-fully
-A ANTREA-POSTROUTING -o {GATEWAY} -m comment --comment "Antrea: masquerade LOCAL traffic" -m addrtype ! --src-type LOCAL \
--limit-iface-out -m addrtype --src-type LOCAL -j MASQUERADE --random-fully
COMMIT
"""
