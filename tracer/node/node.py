# SPDX-License-Identifier: Apache-2.0
"""Data of the node for findings: listening processes, kube-proxy's node name, settings, counters, addresses.

Data is read when a finding requests it and kept for a second. Nothing is changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path
from typing import TypeVar

from tracer.node import kube_proxy, nft_sets, procnet, proxy_state
from tracer.node.host_files import of_node
from tracer.node.kube_proxy import KubeProxy
from tracer.node.netns import inside
from tracer.node.processes import Processes
from tracer.node.procnet import BoundSocket, ConnectedSocket
from tracer.node.proxy_state import ProxyState
from tracer.node.routes import Routes
from tracer.util import untrusted_file
from tracer.util.endpoint_format import format_endpoint
from tracer.util.lru_dict import LruDict

KEPT_SECONDS, ANSWERS_KEPT = 1.0, 4096
VOLATILE_SECONDS = 0.05
"""Time that a value is kept which a reported packet may have changed, such as conntrack's counters, s."""
SETS_SECONDS = 10.0
"""Time that the elements of a set are kept, s."""

T = TypeVar("T")


@dataclass(frozen=True)
class ListeningSocket:
    """A process that listens on a port of the node.

    Attributes:
        address: The address; "0.0.0.0" or "::" = all addresses.
        port: The port.
        pid: The process, 0 = not known.
        command: Name of the process.
    """

    address: str
    port: int
    pid: int
    command: str

    @property
    def text(self) -> str:
        return f"{self.command} (pid {self.pid})" if self.pid else "a process that cannot be seen from here"

    @property
    def place(self) -> str:
        return format_endpoint(self.address, self.port)


@dataclass(frozen=True)
class LocalConnection:
    """A connection of a process of the node.

    Attributes:
        pid: The process, 0 = not known.
        command: Name of the process.
    """

    pid: int
    command: str

    @property
    def text(self) -> str:
        return f"{self.command} (pid {self.pid})" if self.pid else "a process that cannot be seen from here"


class HostReader:
    """Reads the node that this process runs on.

    Sockets and conntrack's counters are those of process 1's network namespace, or of our own if that cannot be read.
    """

    def __init__(self, proc: Path = Path("/proc"), run: Path | None = None, sys: Path = Path("/sys")) -> None:
        self._proc, self._run, self._sys, self._processes = proc, run or of_node("/run"), sys, Processes()
        self._kept: LruDict[Hashable, tuple[float, object]] = LruDict(ANSWERS_KEPT, "answers about the node")
        self._net = next((p for p in (proc / "1/net", proc / "self/net") if os.access(p / "tcp", os.R_OK)), proc / "self/net")

    def _keep(self, key: Hashable, ask: Callable[[], T], seconds: float = KEPT_SECONDS) -> T:
        """The result of `ask`, kept for `seconds`."""
        kept = self._kept.get(key)
        if kept and time.monotonic() - kept[0] < seconds:
            return kept[1]  # type: ignore[return-value]
        found = ask()
        self._kept[key] = time.monotonic(), found
        return found

    def bound(self, protocol: str) -> tuple[BoundSocket, ...]:
        """Listening or unconnected sockets of the node. protocol: "tcp" or "udp"."""
        return self._keep(("bound", protocol), lambda: procnet.bound(self._net, protocol))

    def listener(self, address: str, port: int, protocol: str) -> ListeningSocket | None:
        """The process that listens on this address and port of the node. protocol: "tcp" or "udp"."""
        best = procnet.receiver(self.bound(protocol), address, port)
        return ListeningSocket(best.address, port, *self.owner(best.inode)) if best else None

    def connected(self, protocol: str, port: int) -> tuple[ConnectedSocket, ...]:
        """Sockets of the node that have a peer, by their own port. protocol: "tcp" or "udp"."""
        return self._keep(("connected", protocol, port), lambda: procnet.connected(self._net, protocol, port))

    def owner(self, inode: int) -> tuple[int, str]:
        """(pid, command) of a process that holds a socket; (0, "") = not found."""
        return self._processes.owner(inode)

    def is_kube_proxy(self, pid: int) -> bool:
        """Whether a process is kube-proxy, or k3s, which includes it."""
        return self._keep(("is kube-proxy", pid), lambda: kube_proxy.has_kube_proxy(pid, self._proc))

    def kube_proxy(self) -> KubeProxy | None:
        return self._keep("kube-proxy", lambda: kube_proxy.running(self._proc))

    def proxy_state(self) -> ProxyState | None:
        """The processes of kube-proxy; None = not known."""
        return self._keep("proxy state", lambda: proxy_state.read(self._proc, self._run))

    def setting(self, name: str, pid: int = 0, kept_seconds: float = KEPT_SECONDS) -> str:
        """A sysctl ("net/ipv4/tcp_syncookies") in the namespace of a process, 0 = our own; "" = no such sysctl.

        A value that was read less than `kept_seconds` ago is not read again.
        """
        return self._keep(("setting", name, pid), lambda: self._read_setting(name, pid), kept_seconds)

    def _read_setting(self, name: str, pid: int) -> str:
        path = self._proc / "sys" / name
        try:
            if not pid:
                return " ".join(path.read_text(encoding="ascii").split())
            fd = os.open(self._proc / str(pid) / "ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return " ".join(inside(fd, lambda: path.read_text(encoding="ascii")).split())
            finally:
                os.close(fd)
        except OSError:
            return ""

    def counters(self, pid: int) -> dict[str, int]:
        """TcpExt counters of the namespace of a process; {} = they cannot be read."""
        return self._keep(("counters", pid), lambda: procnet.counters(self._proc / str(pid) / "net"))

    def addresses(self) -> dict[str, str]:
        """Interfaces by address, in our own namespace; {} = they cannot be read."""
        return self._keep("addresses", _addresses)

    def conntrack_counters(self) -> dict[str, int]:
        """conntrack's counters since boot, summed over CPUs: insert_failed, drop ... {} = they cannot be read."""
        return self._keep("conntrack", lambda: procnet.conntrack(self._net), VOLATILE_SECONDS)

    def packet_queues(self) -> tuple[int, ...] | None:
        """Queues of NFQUEUE rules to which a process of the node is bound; None = they cannot be read."""
        return self._keep("packet queues", lambda: procnet.packet_queues(self._net))

    def mtu(self, interface: str) -> int:
        """MTU of an interface of our namespace, bytes; 0 = no such interface."""
        return self._keep(("mtu", interface), lambda: self._read_mtu(interface))

    def _read_mtu(self, interface: str) -> int:
        with suppress(OSError, ValueError):
            return int((self._sys / "class/net" / interface / "mtu").read_text(encoding="ascii"))
        return 0

    def way_out(self, address: str) -> str:
        """The interface by which our namespace sends to an address; "" = it does not send."""
        return self._keep(("way out", address), lambda: Routes().to(address).out)

    def flannel_subnets(self) -> tuple[str, ...] | None:
        """The networks that flannel has leased for this node, from /run/flannel/subnet.env.

        () = no such file; None = there is one that cannot be read, or must not be trusted.
        """
        return self._keep("flannel", lambda: _leases(self._run / "flannel/subnet.env"))

    def node_port_addresses(self) -> tuple[str, ...] | None:
        """The addresses at which kube-proxy's nftables mode answers NodePorts, of both families; None = they cannot be read.

        () = no such set: it has no table here, or answers at each address of the node.
        """
        return self._keep("node port addresses", lambda: nft_sets.addresses("kube-proxy", "nodeport-ips"), SETS_SECONDS)


def _leases(path: Path) -> tuple[str, ...] | None:
    try:
        pairs = (line.partition("=") for line in untrusted_file.text(path, owners=untrusted_file.ours()).splitlines())
        values = [value for name, _, value in pairs if name in ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET") and value]
        return tuple(str(ip_interface(value).network) for value in values)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, ValueError):
        return None


def _addresses() -> dict[str, str]:
    """Interfaces by address, in our own namespace; {} = they cannot be read."""
    from pyroute2 import IPRoute

    with suppress(Exception):  # pyroute2 raises many kinds
        with IPRoute() as route:
            names = {link["index"]: str(dict(link["attrs"]).get("IFLA_IFNAME")) for link in route.get_links()}
            found = [(dict(a["attrs"]), names.get(a["index"], "")) for a in route.get_addr()]
        return {str(attrs.get("IFA_LOCAL") or attrs.get("IFA_ADDRESS")): name for attrs, name in found}
    return {}
