# SPDX-License-Identifier: Apache-2.0
"""kube-proxy 1.36's rules in nftables mode, and portmap's, in the format of `nft -f`."""

from __future__ import annotations

from collections.abc import Sequence

from incidents.proxy.model import PODS, SERVICES, HostPort, Service, digest, end


def rules(services: Sequence[Service], node: str) -> str:
    """kube-proxy's table of one family. node: the address of NodePorts."""
    family = services[0].family
    ip, kind = ("ip6", "ipv6_addr") if family == 6 else ("ip", "ipv4_addr")
    maps: dict[str, list[str]] = {"services": [], "nodeports": [], "none": [], "none-nodeports": [], "hairpin": []}
    chains = ""
    for s in services:
        source = f"{s.name}/tcp/{s.port_name}"
        own = f"{digest(source, 8)}-{source}"
        if s.ends:
            ends = ", ".join(f"{n} : {address} . {port}" for n, (address, port) in enumerate(s.ends))
            maps["hairpin"] += [f"{a} . {a} . tcp . {p}" for a, p in s.ends]
            maps["services"].append(f"{s.address} . tcp . {s.port} : goto service-{own}")
            if s.affinity:
                chains += _with_affinity(s, own, ip, kind)
            else:
                dnat = f"meta l4proto tcp dnat {ip} to numgen random mod {len(s.ends)} map {{ {ends} }}"
                chains += f"chain service-{own} {{\n {dnat}\n}}\n"
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
    filled |= {"<ip>": ip, "<kind>": kind, "<range>": SERVICES[family]}
    text = _NFTABLES
    for word, put in filled.items():
        text = text.replace(word, put)
    return text


def _with_affinity(s: Service, own: str, ip: str, kind: str) -> str:
    """The chains of a Service with session affinity: each endpoint has a set of the clients that stay with it."""
    sets = keeps = behind = ""
    choices = []
    for number, (address, port) in enumerate(s.ends):
        source = f"{s.name}/tcp/{s.port_name}__{address}/{port}"
        name = f"{digest(source, 8)}-{source}"
        sets += f"set affinity-{name} {{ type {kind}; flags dynamic, timeout; timeout 3h; }}\n"
        keeps += f" {ip} saddr @affinity-{name} goto endpoint-{name}\n"
        choices.append(f"{number} : goto endpoint-{name}")
        behind += (
            f"chain endpoint-{name} {{\n update @affinity-{name} {{ {ip} saddr }}\n"
            f" meta l4proto tcp dnat to {end(address, port)}\n}}\n"
        )
    chosen = f" numgen random mod {len(s.ends)} vmap {{ {', '.join(choices)} }}\n"
    return f"{sets}{behind}chain service-{own} {{\n{keeps}{chosen}}}\n"


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


def host_ports(found: Sequence[HostPort]) -> str:
    """portmap's table of one family; "" without a hostPort."""
    if not found:
        return ""
    ip = "ip6" if ":" in found[0].address else "ip"
    local = " fib daddr type local jump hostports_all\n"
    rules = "".join(f' tcp dport {h.port} dnat to {end(h.address, h.to)} comment "{h.container}"\n' for h in found)
    return (
        f"table {ip} cni_hostport {{\nchain hostports {{\n{rules}}}\nchain hostip_hostports {{\n}}\n"
        "chain hostports_all {\n jump hostip_hostports\n jump hostports\n}\n"
        f"chain prerouting {{\n type nat hook prerouting priority -100; policy accept;\n{local}}}\n"
        f"chain output {{\n type nat hook output priority -100; policy accept;\n{local}}}\n}}\n"
    )
