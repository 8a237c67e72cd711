# SPDX-License-Identifier: Apache-2.0
"""Rules of kube-router for one pod that NetworkPolicies limit, as its controller writes them (pkg/controllers/netpol)."""

from __future__ import annotations

import base64
import hashlib

from incidents.objects import Object
from incidents.proxy.table import table

NAMESPACE, DENIES, ALLOWS = "default", "deny-all", "allow-http"
_MARK = "-j MARK --set-xmark 0x10000/0x10000"


def policies(port: int) -> list[Object]:
    """Two NetworkPolicies for all pods: one allows nothing, one allows this port."""
    meta = {name: {"namespace": NAMESPACE, "name": name} for name in (DENIES, ALLOWS)}
    spec: Object = {"podSelector": {}, "policyTypes": ["Ingress"]}
    allow = {**spec, "ingress": [{"ports": [{"port": port, "protocol": "TCP"}]}]}
    return [
        {"kind": "NetworkPolicy", "metadata": meta[DENIES], "spec": spec},
        {"kind": "NetworkPolicy", "metadata": meta[ALLOWS], "spec": allow},
    ]


def rules(pod: str, address: str, port: int) -> str:
    """The rules for a pod. Without ipsets: the policies select every pod, and their rules all senders.

    Args:
        pod: Name of the pod.
        address: Its address.
        port: The port that is allowed.
    """
    own = f"KUBE-POD-FW-{_digest(NAMESPACE + pod)}"
    denies, allows = (f"KUBE-NWPLCY-{_digest(NAMESPACE + name)}" for name in (DENIES, ALLOWS))
    all_sources = (
        f"rule to ACCEPT traffic from all sources to dest pods selected by policy name: {ALLOWS} namespace {NAMESPACE}"
    )
    name = f"POD name:{pod} namespace: {NAMESPACE}"
    into = f'-d {address}/32 -m comment --comment "rule to jump traffic destined to {name} to chain {own}" -j {own}'
    accept = '-m comment --comment "rule to explicitly ACCEPT traffic that comply to network policies"'
    chains = {
        "FORWARD": ['-m comment --comment "kube-router netpol - TEMCG2JMHZYE7H7T" -j KUBE-ROUTER-FORWARD'],
        "KUBE-ROUTER-FORWARD": [into, f"{accept} -m mark --mark 0x20000/0x20000 -j ACCEPT"],
        own: [
            '-m comment --comment "rule for stateful firewall for pod" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
            f'-d {address}/32 -m comment --comment "run through nw policy {ALLOWS}" -j {allows}',
            f'-d {address}/32 -m comment --comment "run through nw policy {DENIES}" -j {denies}',
            f'-m comment --comment "rule to REJECT traffic destined for {name}" -m mark ! --mark 0x10000/0x10000'
            " -j REJECT --reject-with icmp-port-unreachable",
            "-j MARK --set-xmark 0x0/0x10000",
            "-j MARK --set-xmark 0x20000/0x20000",
        ],
        denies: [],
        allows: [f'-d {address}/32 -p tcp -m comment --comment "{all_sources}" -m tcp --dport {port} {_MARK}'],
    }
    return table("filter", ("FORWARD",), chains)


def _digest(text: str) -> str:
    return base64.b32encode(hashlib.sha256(f"{text}1764220000000000000".encode()).digest()).decode()[:16]
