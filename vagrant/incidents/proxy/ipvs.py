# SPDX-License-Identifier: Apache-2.0
"""kube-proxy 1.20 in ipvs mode: virtual servers, sets, and a few rules, the same for all Services. IPv4 only."""

from __future__ import annotations

from collections.abc import Sequence

from incidents.proxy import portmap
from incidents.proxy.model import PODS, HostPort, Service, end
from incidents.proxy.table import KUBE, MASQUERADING, POST, table

_CLUSTER_IP = "-m set --match-set KUBE-CLUSTER-IP dst,dst"
_SETS = """create KUBE-CLUSTER-IP hash:ip,port
create KUBE-LOOP-BACK hash:ip,port,ip
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
create KUBE-NODE-PORT-LOCAL-TCP bitmap:port range 0-65535
"""


def rules(
    services: Sequence[Service],
    host_ports: Sequence[HostPort] = (),
    post: Sequence[str] = (),
    first: str = "kube",
    pods: str = PODS[4],
) -> str:
    """The rules as iptables-save prints them; arguments as in iptables.rules."""
    jumps = portmap.beside(KUBE, host_ports, first)
    forward = [f'-m comment --comment "kubernetes forwarding rules" {m}-j ACCEPT' for m in
               ("-m mark --mark 0x4000/0x4000 ", "-m conntrack --ctstate RELATED,ESTABLISHED ")]  # fmt: skip
    filters = table("filter", ("INPUT", "FORWARD", "OUTPUT"), {
        "INPUT": [], "FORWARD": ['-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD'], "OUTPUT": [],
        "KUBE-FORWARD": forward,
    })  # fmt: skip
    for_masquerade = f'-m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" {_CLUSTER_IP}'
    port = '-p tcp -m comment --comment "Kubernetes nodeport TCP port'
    local = f'{port} with externalTrafficPolicy=local" -m set --match-set KUBE-NODE-PORT-LOCAL-TCP dst -j RETURN'
    hairpin = ('-m comment --comment "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose" -m set'
               " --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE")  # fmt: skip
    return filters + table("nat", ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"), {
        "PREROUTING": jumps, "INPUT": [], "OUTPUT": jumps, "POSTROUTING": [POST, *post],
        "KUBE-SERVICES": [
            *([f"! -s {pods} {for_masquerade} -j KUBE-MARK-MASQ"] if pods != "none" else []),
            "-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT", f"{_CLUSTER_IP} -j ACCEPT",
        ],
        "KUBE-NODE-PORT": [
            *([local] if any(s.local for s in services) else []),
            f'{port} for masquerade purpose" -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ',
        ],
        "KUBE-MARK-MASQ": MASQUERADING["KUBE-MARK-MASQ"],
        "KUBE-POSTROUTING": [*([hairpin] if _here(services) else []), *MASQUERADING["KUBE-POSTROUTING"]],
        **portmap.chains(host_ports),
    })  # fmt: skip


def _here(services: Sequence[Service]) -> list[tuple[str, int]]:
    """The endpoints that count as local."""
    return [e for s in services if not s.local for e in s.ends]


def sets(services: Sequence[Service]) -> str:
    """The sets in the format of `ipset restore`."""
    lines = [f"add KUBE-CLUSTER-IP {s.address},tcp:{s.port}" for s in services]
    lines += [f"add KUBE-NODE-PORT-TCP {s.node_port}" for s in services if s.node_port]
    lines += [f"add KUBE-NODE-PORT-LOCAL-TCP {s.node_port}" for s in services if s.node_port and s.local]
    lines += [f"add KUBE-LOOP-BACK {a},tcp:{p},{a}" for a, p in _here(services)]
    return _SETS + "".join(f"{line}\n" for line in dict.fromkeys(lines))


def virtual_servers(services: Sequence[Service], node: str) -> str:
    """The virtual servers in the format of `ipvsadm -R`. node: the address of NodePorts. With policy Local, none of a Service's
    endpoints counts as local.
    """
    lines = []
    for s in services:
        places = [(end(s.address, s.port), s.ends)]
        places += [(end(node, s.node_port), () if s.local else s.ends)] if s.node_port else []
        for place, ends in places:
            lines += [f"-A -t {place} -s rr", *(f"-a -t {place} -r {end(*e)} -m -w 1" for e in ends)]
    return "".join(f"{line}\n" for line in lines)
