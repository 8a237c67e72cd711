# SPDX-License-Identifier: Apache-2.0
"""Cases of rules that should not be there: stale, left over, duplicate, of another mode, of policies."""

from __future__ import annotations

import lzma
import re
from dataclasses import replace
from pathlib import Path

from incidents import objects
from incidents.proxy import iptables
from incidents.proxy import ipvs as in_ipvs
from incidents.proxy.model import HostPort, Service
from incidents.proxy.table import table
from tests.kernel.audit_nodes import CLIENT, FAR, HOSTED, MINE, NETWORK, NODE, OTHERS, PODS, PORT
from tests.kernel.cures import BuiltCase, case
from tests.kernel.cures.box import Box
from tests.kernel.cures.of_ports import SHOP, cluster
from tracer.model.finding import Finding
from tracer.model.hop import HookHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.predict.query import PathQuery

RECORDED = Path(__file__).resolve().parents[2] / "data/real/ipvs-iptables-save.xz"
FAR_AWAY = Service("shop/far", "172.30.0.20", 80, 30500, ((FAR, PORT),))
FLANNEL = [f"! -s {NETWORK} -d {OTHERS} -j RETURN", f"-s {NETWORK} -d {NETWORK} -j RETURN",
           f"! -s {NETWORK} -d {MINE} -j RETURN", f"! -s {NETWORK} -d {NETWORK} -j MASQUERADE"]  # fmt: skip


def _stale(box: Box, back: str, by_packet: bool) -> BuiltCase:
    box.put((back, iptables.rules([FAR_AWAY], post=FLANNEL, pods="none")))
    box.objects(
        objects.node("node-1", NODE, MINE), objects.node("node-2", "192.168.57.20", OTHERS),
        objects.service(FAR_AWAY.name, FAR_AWAY.address, FAR_AWAY.port, FAR_AWAY.node_port),
        objects.endpoints(FAR_AWAY.name, [("far", FAR, "node-2")], PORT),
    )  # fmt: skip
    query = PathQuery(NODE, 40000, FAR_AWAY.address, FAR_AWAY.port)
    return BuiltCase(
        lambda: box.predicted_findings("missing_masquerade", query) if by_packet else box.audit("missing_masquerade"),
        {f"iptables-{back} -t nat -L POSTROUTING": rf"RETURN .*!{NETWORK} +{OTHERS}"},
    )


@case("missing_masquerade", "legacy")
def _stale_legacy(box: Box) -> BuiltCase:
    return _stale(box, "legacy", by_packet=False)


@case("missing_masquerade", "a packet, iptables-nft")
def _stale_nft(box: Box) -> BuiltCase:
    return _stale(box, "nft", by_packet=True)


@case("leftover_chains", "chains that no rule leads to")
def _unreached(box: Box) -> BuiltCase:
    lines = iptables.rules([SHOP]).splitlines()
    jumps = ("-A PREROUTING", "-A OUTPUT", "-A POSTROUTING", "-A INPUT", "-A FORWARD")
    box.put(("legacy", "\n".join(line for line in lines if not line.startswith(jumps)) + "\n"))
    box.objects(*cluster(SHOP))
    return BuiltCase(
        lambda: box.audit("leftover_chains", "unreached"),
        {"iptables-legacy-save": "-A KUBE-NODEPORTS|:KUBE-"},
        repair=lambda: box.rewrite(("legacy", iptables.rules([SHOP]))),
    )


def _twice(box: Box, back: str) -> BuiltCase:
    box.put((back, iptables.rules([SHOP])))
    jump = '-m comment --comment "kubernetes service portals" -j KUBE-SERVICES'
    box.put((back, f"*nat\n-A PREROUTING {jump}\nCOMMIT\n"))
    return BuiltCase(lambda: box.audit("leftover_chains", "twice"), {"iptables -V": "iptables v"})


@case("leftover_chains", "a jump twice, legacy")
def _twice_legacy(box: Box) -> BuiltCase:
    return _twice(box, "legacy")


@case("leftover_chains", "a jump twice, iptables-nft")
def _twice_nft(box: Box) -> BuiltCase:
    return _twice(box, "nft")


_CRICTL = {"crictl pods": "no container runtime is here"}


@case("leftover_chains", "hostPort of a pod that is gone")
def _gone(box: Box) -> BuiltCase:
    gone = HostPort(5000, "10.244.0.99", HOSTED, "ab" * 32)
    box.put(("legacy", iptables.rules([SHOP], [gone])))
    box.objects(*cluster(SHOP))
    return BuiltCase(lambda: box.audit("leftover_chains", "hostPort of nobody"), skipped=_CRICTL)


@case("leftover_chains", "hostPort twice")
def _claimed_twice(box: Box) -> BuiltCase:
    both = [HostPort(5000, PODS["pod-d"], HOSTED, "ab" * 32), HostPort(5000, PODS["pod-b"], HOSTED, "cd" * 32)]
    box.put(("nft", iptables.rules([SHOP], both)))
    box.objects(*cluster(SHOP, 5000))
    return BuiltCase(
        lambda: box.audit("leftover_chains", "hostPort twice"), {"kubectl get pods -A": "db +pg-hp +5000"}, skipped=_CRICTL
    )


@case("mixed_backends", "legacy and iptables-nft", "real")
def _mixed(box: Box) -> BuiltCase:
    box.put(("legacy", iptables.rules([SHOP])), ("nft", iptables.rules([SHOP])))
    return BuiltCase(
        lambda: box.audit("mixed_backends"),
        {
            "iptables-legacy-save": "-A KUBE-SERVICES",
            "iptables-nft-save": "-A KUBE-SERVICES",
            "nft list ruleset": "KUBE-SERVICES",
        },
    )


@case("two_modes", "rules of iptables mode are left in ipvs mode", "real")
def _two_modes(box: Box) -> BuiltCase:
    """The rules that kube-proxy 1.20.2 left when it changed from iptables to ipvs mode."""
    recorded = lzma.decompress(RECORDED.read_bytes()).decode()
    kinds = {"dst": "bitmap:port range 0-65535", "dst,dst": "hash:ip,port", "dst,dst,src": "hash:ip,port,ip"}
    used_sets = sorted(set(re.findall(r"--match-set (\S+) (\S+)", recorded)))
    box.put(("ipset", "".join(f"create {name} {kinds[flags]}\n" for name, flags in used_sets)), ("legacy", recorded))
    return BuiltCase(
        lambda: box.audit("two_modes"), {"iptables-legacy-save": "has no endpoints.*-j REJECT"},
        repair=lambda: box.put(("ipset", in_ipvs.sets([SHOP])), ("legacy", in_ipvs.rules([SHOP]))), proxy="1.20.2",
    )  # fmt: skip


def _dropped(box: Box, back: str, policy: bool = False) -> BuiltCase:
    rule = f"-d {PODS['pod-a']}/32 -p tcp -m tcp --dport {PORT} -j DROP"
    text = "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n" if policy else table("filter", ("FORWARD",), {"FORWARD": [rule]})
    box.put((back, text))
    box.objects(*cluster(SHOP))
    repaired = table("filter", ("FORWARD",), {"FORWARD": [f"-d {PODS['pod-a']}/32 -j ACCEPT"] if policy else []})
    expected_output = {f"iptables-{back} -t filter": "-P FORWARD DROP" if policy else f"DROP .*{PODS['pod-a']}"}
    return BuiltCase(
        lambda: box.predicted_findings("dropped_by_rule", PathQuery(CLIENT, 40000, PODS["pod-a"], PORT)), expected_output,
        repair=lambda: box.rewrite((back, repaired)),
    )  # fmt: skip


@case("dropped_by_rule", "legacy")
def _dropped_legacy(box: Box) -> BuiltCase:
    return _dropped(box, "legacy")


@case("dropped_by_rule", "iptables-nft")
def _dropped_nft(box: Box) -> BuiltCase:
    return _dropped(box, "nft")


@case("dropped_by_rule", "a policy, legacy")
def _policy(box: Box) -> BuiltCase:
    return _dropped(box, "legacy", policy=True)


@case("dropped_by_rule", "a policy, iptables-nft")
def _policy_nft(box: Box) -> BuiltCase:
    return _dropped(box, "nft", policy=True)


@case("dropped_by_rule", "a table of nftables")
def _native(box: Box) -> BuiltCase:
    own = "table inet guard {{\nchain forward {{\ntype filter hook forward priority 0; policy {};\n{}}}\n}}\n"
    box.put(("native", own.format("accept", f"ip daddr {PODS['pod-a']} drop\n")))
    return BuiltCase(
        lambda: box.predicted_findings("dropped_by_rule", PathQuery(CLIENT, 40000, PODS["pod-a"], PORT)),
        {"nft -a list chain inet guard forward": rf"{PODS['pod-a']} drop"},
        repair=lambda: box.rewrite(("native", own.format("accept", ""))),
    )


@case("dropped_by_rule", "a policy of nftables")
def _native_policy(box: Box) -> BuiltCase:
    own = "table inet guard {{\nchain forward {{\ntype filter hook forward priority 0; policy {};\n{}}}\n}}\n"
    box.put(("native", own.format("drop", "")))
    return BuiltCase(
        lambda: box.predicted_findings("dropped_by_rule", PathQuery(CLIENT, 40000, PODS["pod-a"], PORT)),
        {"nft list chain inet guard forward": "policy drop"},
        repair=lambda: box.rewrite(("native", own.format("drop", "accept\n"))),
    )


@case("martian_localnet", "kubelet's rule")
def _martian(box: Box) -> BuiltCase:
    rule = ('! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack !'
            " --ctstate RELATED,ESTABLISHED,DNAT -j DROP")  # fmt: skip
    box.put(("legacy", table("filter", ("OUTPUT",), {"OUTPUT": ["-j KUBE-FIREWALL"], "KUBE-FIREWALL": [rule]})))
    to = ["127.0.0.1"]
    # The sender carries out the cure: it sends to the node's own address.
    return BuiltCase(
        lambda: box.predicted_findings("martian_localnet", PathQuery(NODE, 40000, to[0], 10250)),
        repair=lambda: to.__setitem__(0, NODE),
    )


def _not_ready_seen(box: Box) -> list[Finding]:
    """The audit's findings; those of a packet must have the same causes."""
    found = box.predicted_findings("endpoint_not_ready", PathQuery(CLIENT, 40000, NODE, SHOP.node_port))
    audited = box.audit("endpoint_not_ready")
    assert [f.cause for f in found] == [f.cause for f in audited] and all(f.certain for f in audited), (found, audited)
    return audited


@case("endpoint_not_ready", "legacy")
def _not_ready(box: Box) -> BuiltCase:
    full = Service("db/orders", SHOP.address, SHOP.port, SHOP.node_port, SHOP.ends, "pg")
    empty = Service(full.name, full.address, full.port, full.node_port, (), "pg")

    def put(ready: bool) -> None:
        node, service, pod, ends = cluster(full)
        ends["endpoints"][0]["conditions"]["ready"] = ready
        ends["endpoints"][0]["targetRef"]["name"] = "pg-hp"
        pod["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
        box.objects(node, service, pod, ends)

    def repair() -> None:
        put(True)
        box.rewrite(("legacy", iptables.rules([full])))

    put(False)
    box.put(("legacy", iptables.rules([empty])))
    return BuiltCase(
        lambda: _not_ready_seen(box),
        {"kubectl describe pod -n db pg-hp": r"Ready +False"}, repair=repair,
    )  # fmt: skip


@case("endpoint_not_ready", "policy Local, the pod that is ready runs elsewhere")
def _not_ready_here(box: Box) -> BuiltCase:
    far = ((FAR, PORT),)
    without = Service("db/orders", SHOP.address, SHOP.port, SHOP.node_port, far, "pg", local=True)
    here = Service("db/orders", SHOP.address, SHOP.port, SHOP.node_port, SHOP.ends, "pg")

    def put(ready: bool) -> None:
        node, service, pod, ends = cluster(here)
        service["spec"]["externalTrafficPolicy"] = "Local"
        ends["endpoints"][0]["conditions"]["ready"] = ready
        ends["endpoints"][0]["targetRef"]["name"] = "pg-hp"
        ends["endpoints"] += objects.endpoints(here.name, [("far", FAR, "node-2")], PORT, "pg")["endpoints"]
        pod["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
        box.objects(node, service, pod, ends)

    def repair() -> None:
        put(True)
        box.rewrite(("legacy", iptables.rules([here])))

    put(False)
    box.put(("legacy", iptables.rules([without])))
    return BuiltCase(
        lambda: _not_ready_seen(box),
        {"kubectl describe pod -n db pg-hp": r"Ready +False"}, repair=repair,
    )  # fmt: skip


@case("hairpin_without_masquerade", "legacy")
def _hairpin(box: Box) -> BuiltCase:
    """kube-proxy's jump in POSTROUTING is absent."""
    whole = iptables.rules([SHOP])
    box.put(("legacy", "\n".join(line for line in whole.splitlines() if not line.startswith("-A POSTROUTING")) + "\n"))
    box.objects(*cluster(SHOP))

    def hairpin_packets() -> list[Packet]:
        # A prediction has tables only; that the packet left is known to the tracer from the hook.
        left = HookHop(0, HOST, Hook.POSTROUTING, verdict=Verdict.ACCEPT, out_iface="cni0")
        found = box.packets(PathQuery(PODS["pod-a"], 40000, SHOP.address, SHOP.port))
        return [p if p.outcome in ("dropped", "rejected") else replace(p, hops=(*p.hops, left)) for p in found]

    return BuiltCase(
        lambda: box.packet_findings("hairpin_without_masquerade", hairpin_packets()),
        {"iptables-legacy -t nat -L KUBE-SEP-": rf"KUBE-MARK-MASQ .*{PODS['pod-a']}"},
        repair=lambda: box.rewrite(("legacy", whole)),
    )
