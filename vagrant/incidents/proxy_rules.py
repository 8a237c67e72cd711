"""The rules that kube-proxy 1.36 writes for Services of our choice, in iptables and in nftables mode, with portmap's and
flannel's beside them. A test compares them with what kube-proxy really wrote for the same Services.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Service:
    """One Service with one TCP port. name: ns/name. ends: (address, port) of its endpoints. local: policy Local, and none of
    the endpoints is taken for local.
    """

    name: str
    address: str
    port: int
    node_port: int = 0
    ends: tuple[tuple[str, int], ...] = ()
    port_name: str = ""
    local: bool = False

    @property
    def label(self) -> str:
        return self.name + (f":{self.port_name}" if self.port_name else "")

    @property
    def family(self) -> int:
        return 6 if ":" in self.address else 4


@dataclass(frozen=True)
class HostPort:
    """A hostPort of a pod, as portmap writes it. container: the sandbox's id."""

    port: int
    address: str
    to: int
    container: str


NETWORK = "azure"
PODS = {4: "10.244.0.0/16", 6: "fd00:10:244::/56"}
_SERVICES = {4: "172.30.0.0/16", 6: "fd00:172:30::/112"}
_WORDS = {4: ("32", "icmp-port-unreachable"), 6: ("128", "icmp6-port-unreachable")}


def _hash(text: str, length: int) -> str:
    return b32encode(hashlib.sha256(text.encode()).digest()).decode()[:length]


def _end(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def iptables(
    services: Sequence[Service],
    host_ports: Sequence[HostPort] = (),
    post: Sequence[str] = (),
    first: str = "kube",
    pods: str = "",
) -> str:
    """As iptables-save prints them. first: whose jump stands first, "kube", "portmap", or "anywhere": portmap's, for every
    address. post: rules of POSTROUTING behind kube-proxy's. pods: the pods' network, "none" = nobody is masqueraded for being
    no pod.
    """
    family = services[0].family
    bits, reject = _WORDS[family]
    pods = pods or PODS[family]
    chains: dict[str, list[str]] = {"KUBE-SERVICES": [], "KUBE-NODEPORTS": []}
    outside, inside = [], []
    for s in services:
        comment, own = f'-m comment --comment "{s.label}"', _hash(s.label + "tcp", 16)
        svc, ext = f"KUBE-SVC-{own}", f"KUBE-EXT-{own}"
        at, tcp = f"-d {s.address}/{bits} -p tcp", f"-m tcp --dport {s.port}"
        lacks = f'-m comment --comment "{s.label} has no endpoints"'
        if not s.ends:
            outside.append(f"-p tcp {lacks} -m addrtype --dst-type LOCAL -m tcp --dport {s.node_port} -j REJECT"
                           f" --reject-with {reject}")  # fmt: skip
            inside.append(f"{at} {lacks} {tcp} -j REJECT --reject-with {reject}")
            continue
        named = f'-m comment --comment "{s.label} cluster IP"'
        chains["KUBE-SERVICES"].append(f"{at} {named} {tcp} -j {svc}")
        chains[svc] = [f"! -s {pods} {at} {named} {tcp} -j KUBE-MARK-MASQ"] if pods != "none" else []
        for number, (address, port) in enumerate(s.ends):
            sep, left = f"KUBE-SEP-{_hash(f'{s.label}tcp{_end(address, port)}', 16)}", len(s.ends) - number
            chance = f"-m statistic --mode random --probability {1 / left:.11f} " if left > 1 else ""
            chains[svc].append(f'-m comment --comment "{s.label} -> {_end(address, port)}" {chance}-j {sep}')
            chains[sep] = [f"-s {address}/{bits} {comment} -j KUBE-MARK-MASQ",
                           f"-p tcp {comment} -m tcp -j DNAT --to-destination {_end(address, port)}"]  # fmt: skip
        if s.node_port:
            chains["KUBE-NODEPORTS"].append(f"-p tcp {comment} -m tcp --dport {s.node_port} -j {ext}")
            chains[ext] = _external(s, ext, svc, pods)
            if s.local:
                outside.append(f'-p tcp -m comment --comment "{s.label} has no local endpoints" -m addrtype --dst-type LOCAL'
                               f" -m tcp --dport {s.node_port} -j DROP")  # fmt: skip
    chains["KUBE-SERVICES"].append(_LAST)
    for h in host_ports:
        chain = ("CNI-DN-" + hashlib.sha512((NETWORK + h.container).encode()).hexdigest())[:28]
        who = f'-m comment --comment "dnat name: \\"{NETWORK}\\" id: \\"{h.container}\\""'
        chains.setdefault("CNI-HOSTPORT-DNAT", []).append(f"-p tcp {who} -m multiport --dports {h.port} -j {chain}")
        chains[chain] = [f"-p tcp -m tcp --dport {h.port} -j DNAT --to-destination {_end(h.address, h.to)}"]
    return _filter(outside, inside) + _nat(chains, host_ports, post, first)


_LAST = ('-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype'
         " --dst-type LOCAL -j KUBE-NODEPORTS")  # fmt: skip


def _external(s: Service, ext: str, svc: str, pods: str) -> list[str]:
    if not s.local:
        said = f'-m comment --comment "masquerade traffic for {s.label} external destinations"'
        return [f"{said} -j KUBE-MARK-MASQ", f"-j {svc}"]
    said = f"traffic for {s.label} external destinations"
    return [
        f'-s {pods} -m comment --comment "pod {said}" -j {svc}',
        f'-m comment --comment "masquerade LOCAL {said}" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ',
        f'-m comment --comment "route LOCAL {said}" -m addrtype --src-type LOCAL -j {svc}',
    ]


def _table(name: str, base: Sequence[str], chains: dict[str, list[str]]) -> str:
    heads = [f":{c} {'ACCEPT' if c in base else '-'} [0:0]" for c in chains]
    return "\n".join([f"*{name}", *heads, *(f"-A {c} {rule}" for c, rules in chains.items() for rule in rules), "COMMIT", ""])


def _filter(outside: list[str], inside: list[str]) -> str:
    portals = ('-m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j'
               " KUBE-EXTERNAL-SERVICES")  # fmt: skip
    services = '-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
    rule = '-m comment --comment "kubernetes forwarding'
    forward = [
        f'{rule} rules" -m mark --mark 0x4000/0x4000 -j ACCEPT',
        f'{rule} conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
    ]
    return _table("filter", ("INPUT", "FORWARD", "OUTPUT"), {
        "INPUT": [portals], "OUTPUT": [services],
        "FORWARD": ['-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD', services, portals],
        "KUBE-EXTERNAL-SERVICES": outside, "KUBE-SERVICES": inside, "KUBE-FORWARD": forward,
    })  # fmt: skip


def _nat(chains: dict[str, list[str]], host_ports: Sequence[HostPort], post: Sequence[str], first: str) -> str:
    kube = '-m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
    local = "" if first == "anywhere" else "-m addrtype --dst-type LOCAL "
    jumps = [kube, f"{local}-j CNI-HOSTPORT-DNAT"] if host_ports else [kube]
    if first != "kube":
        jumps.reverse()
    return _table("nat", ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"), {
        "PREROUTING": jumps, "INPUT": [], "OUTPUT": jumps,
        "POSTROUTING": ['-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING', *post],
        "KUBE-MARK-MASQ": ["-j MARK --set-xmark 0x4000/0x4000"],
        "KUBE-POSTROUTING": [
            "-m mark ! --mark 0x4000/0x4000 -j RETURN", "-j MARK --set-xmark 0x4000/0x0",
            '-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully',
        ],
        **chains,
    })  # fmt: skip


def nftables(services: Sequence[Service], node: str, host_ports: Sequence[HostPort] = ()) -> str:
    """For `nft -f`: the table kube-proxy of one family, and behind it portmap's. node: the address that takes NodePorts."""
    family = services[0].family
    ip, kind = ("ip6", "ipv6_addr") if family == 6 else ("ip", "ipv4_addr")
    maps: dict[str, list[str]] = {"services": [], "nodeports": [], "none": [], "none-nodeports": [], "hairpin": []}
    chains = ""
    for s in services:
        source = f"{s.name}/tcp/{s.port_name}"
        own = f"{_hash(source, 8)}-{source}"
        if s.ends:
            ends = ", ".join(f"{n} : {address} . {port}" for n, (address, port) in enumerate(s.ends))
            maps["hairpin"] += [f"{a} . {a} . tcp . {p}" for a, p in s.ends]
            maps["services"].append(f"{s.address} . tcp . {s.port} : goto service-{own}")
            chains += (
                f"chain service-{own} {{\n meta l4proto tcp dnat {ip} to numgen random mod {len(s.ends)} map {{ {ends} }}\n}}\n"
            )
        else:
            maps["none"].append(f'{s.address} . tcp . {s.port} comment "{s.label}" : goto reject-chain')
        if s.node_port and (s.local or not s.ends):
            fate = "drop" if s.ends else "goto reject-chain"
            maps["none-nodeports"].append(f'tcp . {s.node_port} comment "{s.label}" : {fate}')
        if s.node_port and s.ends:
            maps["nodeports"].append(f"tcp . {s.node_port} : goto external-{own}")
            chains += f"chain external-{own} {{\n{_external_nft(s, own, ip)}}}\n"
    filled = {f"<{name}>": f"elements = {{ {', '.join(found)} }}" if found else "" for name, found in maps.items()}
    filled |= {"<why>": 'comment "masquerade clusterIP traffic from outside cluster"'}
    filled |= {"<ips>": ", ".join(s.address for s in services), "<node>": node, "<pods>": PODS[family], "<chains>": chains}
    filled |= {"<ip>": ip, "<kind>": kind, "<range>": _SERVICES[family]}
    text = _NFTABLES
    for word, put in filled.items():
        text = text.replace(word, put)
    return text + (_cni_hostport(ip, host_ports) if host_ports else "")


def _external_nft(s: Service, own: str, ip: str) -> str:
    if not s.local:
        return f' meta mark set meta mark | 0x00004000 comment "masquerade"\n goto service-{own}\n'
    return (
        f' {ip} saddr {PODS[s.family]} goto service-{own} comment "short-circuit pod traffic"\n'
        ' fib saddr type local meta mark set meta mark | 0x00004000 comment "masquerade local traffic"\n'
        f' fib saddr type local goto service-{own} comment "short-circuit local traffic"\n'
    )


_NFTABLES = """table <ip> kube-proxy {
set hairpin-connections { type <kind> . <kind> . inet_proto . inet_service; <hairpin> }
set cluster-ips { type <kind>; elements = { <ips> } }
set nodeport-ips { type <kind>; elements = { <node> } }
map no-endpoint-services { type <kind> . inet_proto . inet_service : verdict; <none> }
map no-endpoint-nodeports { type inet_proto . inet_service : verdict; <none-nodeports> }
map firewall-ips { type <kind> . inet_proto . inet_service : verdict; }
map service-ips { type <kind> . inet_proto . inet_service : verdict; <services> }
map service-nodeports { type inet_proto . inet_service : verdict; <nodeports> }
chain reject-chain {
 reject
}
<chains>chain firewall-check {
 <ip> daddr . meta l4proto . th dport vmap @firewall-ips
}
chain nodeport-endpoints-check {
 <ip> daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
}
chain service-endpoints-check {
 <ip> daddr . meta l4proto . th dport vmap @no-endpoint-services
}
chain cluster-ips-check {
 <ip> daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
 <ip> daddr <range> drop comment "Drop traffic to unallocated ClusterIPs"
}
chain services {
 <ip> daddr @cluster-ips <ip> saddr != <pods> meta mark set meta mark | 0x00004000 <why>
 <ip> daddr . meta l4proto . th dport vmap @service-ips
 <ip> daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
}
chain masquerading {
 meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random
 ct status dnat <ip> saddr . <ip> daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
}
chain filter-prerouting-pre-dnat {
 type filter hook prerouting priority -110; policy accept;
 ct state new jump firewall-check
}
chain filter-output-pre-dnat {
 type filter hook output priority -110; policy accept;
 ct state new jump firewall-check
}
chain filter-input {
 type filter hook input priority 0; policy accept;
 ct state new jump nodeport-endpoints-check
 ct state new jump service-endpoints-check
}
chain filter-forward {
 type filter hook forward priority 0; policy accept;
 ct state new jump service-endpoints-check
 ct state new jump cluster-ips-check
}
chain filter-output {
 type filter hook output priority 0; policy accept;
 ct state new jump service-endpoints-check
 ct state new jump cluster-ips-check
}
chain nat-prerouting {
 type nat hook prerouting priority -100; policy accept;
 jump services
}
chain nat-output {
 type nat hook output priority -100; policy accept;
 jump services
}
chain nat-postrouting {
 type nat hook postrouting priority 100; policy accept;
 jump masquerading
}
}
"""


def _cni_hostport(ip: str, host_ports: Sequence[HostPort]) -> str:
    local = " fib daddr type local jump hostports_all\n"
    rules = "".join(f' tcp dport {h.port} dnat to {_end(h.address, h.to)} comment "{h.container}"\n' for h in host_ports)
    return (
        f"table {ip} cni_hostport {{\nchain hostports {{\n{rules}}}\nchain hostip_hostports {{\n}}\n"
        "chain hostports_all {\n jump hostip_hostports\n jump hostports\n}\n"
        f"chain prerouting {{\n type nat hook prerouting priority -100; policy accept;\n{local}}}\n"
        f"chain output {{\n type nat hook output priority -100; policy accept;\n{local}}}\n}}\n"
    )
