# SPDX-License-Identifier: Apache-2.0
"""The node: this machine's root network namespace, with pods behind a bridge and a client outside.

    client ns            root ns = node-1                                    pod-a .. pod-c ns
    eth0 192.168.56.1 -- eth0 192.168.56.10 | cni0 10.244.0.1 -- veth-a ... -- eth0 10.244.0.11 ...
    fd00:56::1           fd00:56::10        | fd00:10:244::1                   fd00:10:244::11 ...
                         drain0: 203.0.113.0/24 and fd00:113::/64 are routed here and discarded

The addresses are those of the rulesets next to this file. sysctls that are set here stay set: the machine is thrown away.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import AF_INET6, if_nameindex, if_nametoindex
from typing import Any

from scenes.netns import RUN_DIR, entered

BRIDGE, DRAIN, CLIENT = "cni0", "drain0", "client"
UPLINKS = ("eth0", "eth1")
"""The node's interface towards the client has the first of these names that is free on the machine."""
NODE4, NODE6 = "192.168.56.10", "fd00:56::10"
CLIENT4, CLIENT6 = "192.168.56.1", "fd00:56::1"
GATEWAY4, GATEWAY6 = "10.244.0.1", "fd00:10:244::1"
DRAIN4, DRAIN6 = "203.0.113.9", "fd00:113::9"
"""Addresses to which the node forwards, and that never answer: no reply, no ICMP error, no drop."""

STATE_DIR = Path("/run/k8snet-scenes")
"""One file PID-NAME per server process, so that servers of an earlier run can be ended."""

IFA_F_NODAD = 0x02
_MAC = "02:00:0a:f4:00:%02x"


@dataclass(frozen=True)
class Pod:
    """A pod's network namespace: eth0 inside, `host_end` on the node's bridge."""

    name: str
    host_end: str
    addr4: str
    addr6: str


PODS = tuple(Pod(f"pod-{x}", f"veth-{x}", f"10.244.0.{n}", f"fd00:10:244::{n}") for n, x in enumerate("abc", start=11))


class Node:
    """Builds the namespaces and links on entry, removes them on exit. Those of an earlier run are removed first.

    bridge_nf: bridged packets between pods also pass iptables, as on real nodes. uplink: the name chosen for the node's
    interface towards the client. Raises OSError if a foreign interface has one of the names used here; pyroute2's NetlinkError
    for a request that the kernel refuses.
    """

    def __init__(self, pods: Sequence[Pod] = PODS, *, bridge_nf: bool = True) -> None:
        self.pods = tuple(pods)
        self.bridge_nf = bridge_nf
        self.uplink = UPLINKS[0]

    def __enter__(self) -> Node:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        """Build everything; it works when this returns, also over IPv6 (without duplicate address detection)."""
        # the import takes a second or more on an emulated CPU: only here, where links are made
        from pyroute2 import IPRoute, netns

        self.down()
        taken = {name for _, name in if_nameindex()}
        self.uplink = next(name for name in UPLINKS if name not in taken)
        for name in (CLIENT, *(p.name for p in self.pods)):
            netns.create(name)
            with entered(name):
                _sysctl_host()
        _sysctl_host()
        set_node_sysctls()
        if self.bridge_nf:
            use_bridge_netfilter()
        with IPRoute() as ipr:
            ipr.link("add", ifname=BRIDGE, kind="bridge", address=_MAC % 1)
            _address(ipr, BRIDGE, f"{GATEWAY4}/24", f"{GATEWAY6}/64")
            # a dummy has no neighbours to resolve, and discards a packet without counting it as a drop
            ipr.link("add", ifname=DRAIN, kind="dummy")
            _address(ipr, DRAIN, "203.0.113.1/24", "fd00:113::1/64")
            ipr.link("add", ifname=self.uplink, kind="veth", peer={"ifname": "eth0", "net_ns_fd": CLIENT})
            _address(ipr, self.uplink, f"{NODE4}/24", f"{NODE6}/64")
            # without a route no packet to a ClusterIP reaches the rules; the machine's own default route comes first
            _default_route(ipr, CLIENT4, CLIENT6, priority=4096)
            for pod in self.pods:
                ipr.link("add", ifname=pod.host_end, kind="veth", peer={"ifname": "eth0", "net_ns_fd": pod.name})
                ipr.link("set", index=if_nametoindex(pod.host_end), master=if_nametoindex(BRIDGE), state="up")
                # a pod may reach itself through its own Service
                ipr.brport("set", index=if_nametoindex(pod.host_end), mode=1)
        _inside(CLIENT, f"{CLIENT4}/24", f"{CLIENT6}/64", NODE4, NODE6)
        for pod in self.pods:
            _inside(pod.name, f"{pod.addr4}/24", f"{pod.addr6}/64", GATEWAY4, GATEWAY6)

    def down(self) -> None:
        """Remove what up() made, and end every server that was started here, if there are any."""
        end_servers()
        ours = {BRIDGE, DRAIN, *UPLINKS, *(p.host_end for p in self.pods)}
        present = [name for _, name in if_nameindex() if name in ours]
        spaces = [n for n in (CLIENT, *(p.name for p in self.pods)) if (RUN_DIR / n).exists()]
        if not present and not spaces:
            return
        from pyroute2 import IPRoute, netns

        # Links first: a namespace is dismantled some time after its removal, and the names must be free now.
        with IPRoute() as ipr:
            for name in present:
                index = if_nametoindex(name)
                kind = ipr.get_links(index)[0].get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND")
                if kind in ("veth", "bridge", "dummy"):
                    ipr.link("del", index=index)
                elif name not in UPLINKS:
                    raise OSError(f"{name} is in the way: a {kind or 'real'} interface that belongs to no scene")
        for name in spaces:
            netns.remove(name)


def end_servers() -> None:
    """End the server processes that have a file in STATE_DIR, and remove the files."""
    for note in STATE_DIR.glob("*-*.pid"):
        pid = int(note.name.partition("-")[0])
        try:
            # another process may have the number now
            if Path(f"/proc/{pid}/comm").read_text().startswith("scene"):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        except (FileNotFoundError, ProcessLookupError, ChildProcessError):
            pass  # ended already, or not a child of this process
        note.unlink(missing_ok=True)


def _address(ipr: Any, name: str, addr4: str, addr6: str) -> None:
    """Bring link `name` up with these addresses (each "ADDRESS/PREFIX")."""
    index = if_nametoindex(name)
    ipr.link("set", index=index, state="up")
    for addr in (addr4, addr6):
        ip, _, plen = addr.partition("/")
        more = {"flags": IFA_F_NODAD} if ":" in ip else {}
        ipr.addr("add", index=index, address=ip, prefixlen=int(plen), **more)


def _inside(name: str, addr4: str, addr6: str, gw4: str, gw6: str) -> None:
    """Configure eth0 and lo of the namespace `name`, with default routes over gw4 and gw6."""
    from pyroute2 import IPRoute

    with entered(name), IPRoute() as ipr:
        # No router: a new namespace forwards IPv4 when the first one does, and would send foreign packets back to the node.
        _write("ipv4/ip_forward", "0")
        _write("ipv6/conf/all/forwarding", "0")
        ipr.link("set", index=1, state="up")
        _address(ipr, "eth0", addr4, addr6)
        _default_route(ipr, gw4, gw6)


def _default_route(ipr: Any, gw4: str, gw6: str, **more: int) -> None:
    ipr.route("add", dst="0.0.0.0/0", gateway=gw4, **more)
    ipr.route("add", family=AF_INET6, dst="::/0", gateway=gw6, **more)


def _write(path: str, value: str) -> None:
    Path("/proc/sys/net", path).write_text(value)


def _sysctl_host() -> None:
    """For every namespace, before it has links: addresses are usable at once, and the kernel sends no packets by itself."""
    for scope in ("all", "default"):
        _write(f"ipv6/conf/{scope}/accept_dad", "0")
        _write(f"ipv6/conf/{scope}/accept_ra", "0")
        _write(f"ipv6/conf/{scope}/disable_ipv6", "0")
        _write(f"ipv4/conf/{scope}/rp_filter", "0")


def set_node_sysctls() -> None:
    """Sets what kubelet and kube-proxy set on a node, and answers every refusal."""
    _write("ipv4/ip_forward", "1")
    _write("ipv6/conf/all/forwarding", "1")
    # kube-proxy's iptables mode: NodePorts on 127.0.0.1
    _write("ipv4/conf/all/route_localnet", "1")
    # otherwise, after six REJECTs to one client, the kernel sends it only one ICMP error per second
    _write("ipv4/icmp_ratelimit", "0")
    _write("ipv6/icmp/ratelimit", "0")


def use_bridge_netfilter() -> None:
    """Let bridged packets pass iptables; without the module they do not, which is no error."""
    switch = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if not switch.exists():
        subprocess.run(["/sbin/modprobe", "-q", "br_netfilter"], check=False)
    if switch.exists():
        switch.write_text("1")
        switch.with_name("bridge-nf-call-ip6tables").write_text("1")
