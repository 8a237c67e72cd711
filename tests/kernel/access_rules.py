# SPDX-License-Identifier: Apache-2.0
"""Two more Services on a restored node. No recorded node has such Services, so their rules are written here as kube-proxy does.

shop/cart:web has a cluster, an external and a load balancer IP, and session affinity; shop/local:web is external with policy
Local and has one endpoint on this node and one on another. The rules follow kube-proxy 1.36's iptables and nftables proxiers,
and 1.20's ipvs proxier (pkg/proxy/*/proxier.go); names are computed as there.
"""

from __future__ import annotations

import subprocess
from typing import Any

from incidents import links, objects
from scenes import rules
from scenes.topology import GATEWAY4, NODE4, PODS
from tracer.kube.chain_names import endpoint_hash, nftables_name, service_hash
from tracer.node.addresses import IPVS_LINK

CART_IP, EXTERNAL_IP, BALANCER_IP = "172.30.9.1", "198.51.100.7", "198.51.100.8"
LOCAL_IP, LOCAL_PORT = "172.30.9.2", 30777
HERE, THERE = PODS[0].addr4, "10.244.1.9"
AFFINITY_SECONDS = 10800
PODS_NET = "10.244.0.0/16"


def api_objects() -> list[dict[str, Any]]:
    affinity = {"sessionAffinity": "ClientIP", "externalIPs": [EXTERNAL_IP]}
    cart = objects.service("shop/cart", CART_IP, 80, 0, "web", **affinity)
    cart["status"] = {"loadBalancer": {"ingress": [{"ip": BALANCER_IP}]}}
    here = [(f"cart-{pod.name[-1]}", pod.addr4, "node-1") for pod in PODS[:2]]
    return [
        cart,
        objects.endpoints("shop/cart", here, 8080, "web"),
        objects.service("shop/local", LOCAL_IP, 80, LOCAL_PORT, "web", externalTrafficPolicy="Local"),
        objects.endpoints("shop/local", [("local-a", HERE, "node-1"), ("local-z", THERE, "node-2")], 8080, "web"),
    ]


def add(how: str) -> None:
    """Adds the rules of both Services to the rules in force. how: "legacy", "nft", "native" or "ipvs"."""
    if how == "native":
        subprocess.run(["nft", "-f", "-"], input=_nftables(), text=True, check=True)
    elif how == "ipvs":
        _ipvs()
    else:
        rules.restore_text(_iptables(), 4, "legacy" if how == "legacy" else "nft", flush=False)


def _iptables() -> str:
    cart, local = service_hash("shop/cart:web", "tcp"), service_hash("shop/local:web", "tcp")
    chains, out = [], []

    def rule(chain: str, comment: str, rest: str) -> None:
        out.append(f'-A {chain} -m comment --comment "{comment}" {rest}')

    for pod in PODS[:2]:
        sep = _sep("shop/cart:web", pod.addr4)
        chains.append(sep)
        rule(sep, "shop/cart:web", f"-s {pod.addr4}/32 -j KUBE-MARK-MASQ")
        recent = f"-m recent --set --name {sep} --mask 255.255.255.255 --rsource"
        rule(sep, "shop/cart:web", f"-p tcp {recent} -m tcp -j DNAT --to-destination {pod.addr4}:8080")
    sep = _sep("shop/local:web", HERE)
    rule(sep, "shop/local:web", f"-s {HERE}/32 -j KUBE-MARK-MASQ")
    rule(sep, "shop/local:web", f"-p tcp -m tcp -j DNAT --to-destination {HERE}:8080")
    chains += [sep, f"KUBE-SVC-{cart}", f"KUBE-EXT-{cart}", f"KUBE-SVC-{local}", f"KUBE-EXT-{local}", f"KUBE-SVL-{local}"]
    rule(f"KUBE-SVC-{cart}", "shop/cart:web cluster IP", f"! -s {PODS_NET} -d {CART_IP}/32 -p tcp --dport 80 -j KUBE-MARK-MASQ")
    for pod in PODS[:2]:
        recent_check = (
            f"-m recent --rcheck --seconds {AFFINITY_SECONDS} --reap --name {{0}} --mask 255.255.255.255 --rsource -j {{0}}"
        )
        rule(f"KUBE-SVC-{cart}", f"shop/cart:web -> {pod.addr4}:8080", recent_check.format(_sep("shop/cart:web", pod.addr4)))
    for pod, chance in zip(PODS[:2], ("-m statistic --mode random --probability 0.50000000000 ", ""), strict=True):
        rule(f"KUBE-SVC-{cart}", f"shop/cart:web -> {pod.addr4}:8080", f"{chance}-j {_sep('shop/cart:web', pod.addr4)}")
    rule(f"KUBE-EXT-{cart}", "masquerade traffic for shop/cart:web external destinations", "-j KUBE-MARK-MASQ")
    out.append(f"-A KUBE-EXT-{cart} -j KUBE-SVC-{cart}")
    ext = f"KUBE-EXT-{local}"
    rule(ext, "pod traffic for shop/local:web external destinations", f"-s {PODS_NET} -j KUBE-SVC-{local}")
    masquerade = "masquerade LOCAL traffic for shop/local:web external destinations"
    rule(ext, masquerade, "-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ")
    route = "route LOCAL traffic for shop/local:web external destinations"
    rule(ext, route, f"-m addrtype --src-type LOCAL -j KUBE-SVC-{local}")
    out.append(f"-A {ext} -j KUBE-SVL-{local}")
    rule(f"KUBE-SVL-{local}", f"shop/local:web -> {HERE}:8080", f"-j {sep}")
    for address, what, chain in (
        (CART_IP, "cluster IP", f"KUBE-SVC-{cart}"),
        (EXTERNAL_IP, "external IP", f"KUBE-EXT-{cart}"),
        (BALANCER_IP, "loadbalancer IP", f"KUBE-EXT-{cart}"),
    ):
        comment = f'-m comment --comment "shop/cart:web {what}"'
        out.append(f"-I KUBE-SERVICES 1 -d {address}/32 -p tcp {comment} -m tcp --dport 80 -j {chain}")
    out.append(f'-I KUBE-NODEPORTS 1 -p tcp -m comment --comment "shop/local:web" -m tcp --dport {LOCAL_PORT} -j {ext}')
    return "\n".join(["*nat", *(f":{c} - [0:0]" for c in chains), *out, "COMMIT", ""])


def _sep(label: str, address: str) -> str:
    return f"KUBE-SEP-{endpoint_hash(label, 'tcp', address, 8080)}"


def _nftables() -> str:
    cart, local = (nftables_name(f"shop/{name}/tcp/web") for name in ("cart", "local"))
    lines = ["table ip kube-proxy {"]
    ends = []
    for pod in PODS[:2]:
        name = nftables_name(f"shop/cart/tcp/web__{pod.addr4}/8080")
        ends.append(name)
        lines += [
            f"set affinity-{name} {{ type ipv4_addr; flags dynamic,timeout; timeout {AFFINITY_SECONDS}s; }}",
            f"chain endpoint-{name} {{",
            f"  ip saddr {pod.addr4} meta mark set meta mark | 0x4000",
            f"  update @affinity-{name} {{ ip saddr }}",
            f"  meta l4proto tcp dnat to {pod.addr4}:8080",
            "}",
        ]
    lines += [
        f"chain service-{cart} {{",
        *(f"  ip saddr @affinity-{name} goto endpoint-{name}" for name in ends),
        "  numgen random mod 2 vmap { " + ", ".join(f"{n} : goto endpoint-{name}" for n, name in enumerate(ends)) + " }",
        "}",
        f"chain external-{cart} {{",
        '  meta mark set meta mark | 0x4000 comment "masquerade"',
        f"  goto service-{cart}",
        "}",
        f"chain local-{local} {{ meta l4proto tcp dnat to {HERE}:8080; }}",
        f"chain external-{local} {{ goto local-{local}; }}",
        "}",
        f"add element ip kube-proxy cluster-ips {{ {CART_IP} }}",
        f"add element ip kube-proxy service-ips {{ {CART_IP} . tcp . 80 : goto service-{cart} }}",
        f"add element ip kube-proxy service-nodeports {{ tcp . {LOCAL_PORT} : goto external-{local} }}",
    ]
    for address in (EXTERNAL_IP, BALANCER_IP):
        lines.append(f"add element ip kube-proxy service-ips {{ {address} . tcp . 80 : goto external-{cart} }}")
    return "\n".join(lines) + "\n"


def _ipvs() -> None:
    servers = []
    for address in (CART_IP, EXTERNAL_IP, BALANCER_IP):
        links.ip(f"addr add {address}/32 dev {IPVS_LINK}")
        servers.append(f"-A -t {address}:80 -s rr -p {AFFINITY_SECONDS}")
        servers += [f"-a -t {address}:80 -r {pod.addr4}:8080 -m -w 1" for pod in PODS[:2]]
    for address in (NODE4, GATEWAY4):
        servers += [f"-A -t {address}:{LOCAL_PORT} -s rr", f"-a -t {address}:{LOCAL_PORT} -r {HERE}:8080 -m -w 1"]
    subprocess.run(["ipvsadm", "-R"], input="\n".join(servers) + "\n", text=True, check=True, capture_output=True)
    links.ipset(
        f"add KUBE-CLUSTER-IP {CART_IP},tcp:80\nadd KUBE-EXTERNAL-IP {EXTERNAL_IP},tcp:80\n"
        f"add KUBE-LOAD-BALANCER {BALANCER_IP},tcp:80\nadd KUBE-NODE-PORT-LOCAL-TCP {LOCAL_PORT}\n"
        f"add KUBE-NODE-PORT-TCP {LOCAL_PORT}\n"
    )
    external = '-m comment --comment "Kubernetes service external ip + port for masquerade and filter purpose"'
    balancer = '-m comment --comment "Kubernetes service lb portal"'
    local = '-m comment --comment "Kubernetes nodeport TCP port with externalTrafficPolicy=local"'
    text = f"""*nat
-I KUBE-NODE-PORT 1 -p tcp {local} -m set --match-set KUBE-NODE-PORT-LOCAL-TCP dst -j RETURN
-I KUBE-SERVICES 1 {balancer} -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-I KUBE-SERVICES 2 {external} -m set --match-set KUBE-EXTERNAL-IP dst,dst -j KUBE-MARK-MASQ
COMMIT
"""
    rules.restore_text(text, 4, "nft", flush=False)
