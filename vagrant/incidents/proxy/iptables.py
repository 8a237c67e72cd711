# SPDX-License-Identifier: Apache-2.0
"""kube-proxy 1.36's rules in iptables mode, as iptables-save prints them."""

from __future__ import annotations

from collections.abc import Sequence

from incidents.proxy import portmap
from incidents.proxy.model import PODS, HostPort, Service, digest, end
from incidents.proxy.table import KUBE, MASQUERADING, POST, table

_WORDS = {4: ("32", "icmp-port-unreachable"), 6: ("128", "icmp6-port-unreachable")}


def rules(
    services: Sequence[Service],
    host_ports: Sequence[HostPort] = (),
    post: Sequence[str] = (),
    first: str = "kube",
    pods: str = "",
) -> str:
    """The rules as iptables-save prints them. first: the first jump, "kube", "portmap", or "anywhere": portmap's, for every
    address. post: rules of POSTROUTING after kube-proxy's. pods: the pods' network, "none" = no masquerading of clients that
    are no pods.
    """
    family = services[0].family
    bits, reject = _WORDS[family]
    pods = pods or PODS[family]
    chains: dict[str, list[str]] = {"KUBE-SERVICES": [], "KUBE-NODEPORTS": []}
    outside, inside = [], []
    for s in services:
        comment, own = f'-m comment --comment "{s.label}"', digest(s.label + s.protocol, 16)
        svc, ext = f"KUBE-SVC-{own}", f"KUBE-EXT-{own}"
        proto = s.protocol
        at, tcp = f"-d {s.address}/{bits} -p {proto}", f"-m {proto} --dport {s.port}"
        lacks = f'-m comment --comment "{s.label} has no endpoints"'
        if not s.ends:
            outside.append(f"-p {proto} {lacks} -m addrtype --dst-type LOCAL -m {proto} --dport {s.node_port} -j REJECT"
                           f" --reject-with {reject}")  # fmt: skip
            inside.append(f"{at} {lacks} {tcp} -j REJECT --reject-with {reject}")
            continue
        named = f'-m comment --comment "{s.label} cluster IP"'
        chains["KUBE-SERVICES"].append(f"{at} {named} {tcp} -j {svc}")
        chains[svc] = [f"! -s {pods} {at} {named} {tcp} -j KUBE-MARK-MASQ"] if pods != "none" else []
        if s.affinity:
            chains[svc] += [f'-m comment --comment "{s.label} -> {end(*e)}" -m recent --rcheck --seconds 10800 --reap --name'
                            f" {_endpoint(s, *e)} --mask {_MASKS[family]} --rsource -j {_endpoint(s, *e)}"
                            for e in s.ends]  # fmt: skip
        for number, (address, port) in enumerate(s.ends):
            sep, left = _endpoint(s, address, port), len(s.ends) - number
            chance = f"-m statistic --mode random --probability {1 / left:.11f} " if left > 1 else ""
            chains[svc].append(f'-m comment --comment "{s.label} -> {end(address, port)}" {chance}-j {sep}')
            chains[sep] = [f"-s {address}/{bits} {comment} -j KUBE-MARK-MASQ",
                           f"-p {proto} {comment} {_remembers(s, sep)}-m {proto} -j DNAT"
                           f" --to-destination {end(address, port)}"]  # fmt: skip
        if s.node_port:
            chains["KUBE-NODEPORTS"].append(f"-p {proto} {comment} -m {proto} --dport {s.node_port} -j {ext}")
            chains[ext] = _external(s, svc, pods)
            if s.local and s.near:
                near = f"KUBE-SVL-{own}"
                chains[ext].append(f"-j {near}")
                chains[near] = [f'-m comment --comment "{s.label} -> {end(*e)}" -j {_endpoint(s, *e)}' for e in s.near]
            elif s.local:
                outside.append(f'-p tcp -m comment --comment "{s.label} has no local endpoints" -m addrtype --dst-type LOCAL'
                               f" -m tcp --dport {s.node_port} -j DROP")  # fmt: skip
    chains["KUBE-SERVICES"].append(_LAST)
    chains |= portmap.chains(host_ports)
    return _filter(outside, inside) + _nat(chains, host_ports, post, first)


_LAST = ('-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype'
         " --dst-type LOCAL -j KUBE-NODEPORTS")  # fmt: skip


_MASKS = {4: "255.255.255.255", 6: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}


def _endpoint(s: Service, address: str, port: int) -> str:
    """The name of an endpoint's chain."""
    return f"KUBE-SEP-{digest(f'{s.label}{s.protocol}{end(address, port)}', 16)}"


def _remembers(s: Service, sep: str) -> str:
    return f"-m recent --set --name {sep} --mask {_MASKS[s.family]} --rsource " if s.affinity else ""


def _external(s: Service, svc: str, pods: str) -> list[str]:
    if not s.local:
        comment = f'-m comment --comment "masquerade traffic for {s.label} external destinations"'
        return [f"{comment} -j KUBE-MARK-MASQ", f"-j {svc}"]
    comment = f"traffic for {s.label} external destinations"
    return [
        *([f'-s {pods} -m comment --comment "pod {comment}" -j {svc}'] if pods != "none" else []),
        f'-m comment --comment "masquerade LOCAL {comment}" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ',
        f'-m comment --comment "route LOCAL {comment}" -m addrtype --src-type LOCAL -j {svc}',
    ]


def _filter(outside: list[str], inside: list[str]) -> str:
    portals = ('-m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j'
               " KUBE-EXTERNAL-SERVICES")  # fmt: skip
    services = '-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
    rule = '-m comment --comment "kubernetes forwarding'
    forward = [
        f'{rule} rules" -m mark --mark 0x4000/0x4000 -j ACCEPT',
        f'{rule} conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
    ]
    return table("filter", ("INPUT", "FORWARD", "OUTPUT"), {
        "INPUT": [portals], "OUTPUT": [services],
        "FORWARD": ['-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD', services, portals],
        "KUBE-EXTERNAL-SERVICES": outside, "KUBE-SERVICES": inside, "KUBE-FORWARD": forward,
    })  # fmt: skip


def _nat(chains: dict[str, list[str]], host_ports: Sequence[HostPort], post: Sequence[str], first: str) -> str:
    jumps = portmap.beside(KUBE, host_ports, first)
    return table("nat", ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"), {
        "PREROUTING": jumps, "INPUT": [], "OUTPUT": jumps,
        "POSTROUTING": [POST, *post],
        **MASQUERADING,
        **chains,
    })  # fmt: skip
