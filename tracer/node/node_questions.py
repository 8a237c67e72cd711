# SPDX-License-Identifier: Apache-2.0
"""Questions about the node that findings ask. A finding declares them as its ASKS.

A question says how it is asked (`ask`), and when a recording without explanation asks it ahead (`prefetch`): a replay explains
the packets later, and then only recorded answers are available. The key of its answer is part of the capture format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

from tracer.model.namespace_name import Netns
from tracer.node import procnet
from tracer.node.kube_proxy import KubeProxy
from tracer.node.node import KEPT_SECONDS, VOLATILE_SECONDS, HostReader, ListeningSocket, LocalConnection
from tracer.node.procnet import BoundSocket, ConnectedSocket
from tracer.node.proxy_state import ProxyState
from tracer.util.questions import Answer, Journal, Known, NotAsked

P = ParamSpec("P")
T = TypeVar("T")
PROTOCOLS = ("tcp", "udp")
MOST_OWNERS = 16
"""Maximum number of sockets of one port for which a recording asks the process."""


@dataclass(frozen=True)
class Occasion:
    """What a batch of events gives reason to ask, in a recording without explanation.

    Attributes:
        is_periodic: A question without arguments is due again.
        has_drops: Packets were dropped.
        has_first_datagram: The first UDP packet of the run was seen.
        destinations: Destinations of long dropped packets.
        interfaces: Outgoing interfaces of the node's packets, where packets were dropped.
        listeners: Processes of listening sockets that packets met: pids with settings that are due.
        counted_listeners: The same: pids with counters that are due.
        drop_namespaces: Names of the namespaces in which packets were dropped.
        translated_ports: Protocols and destination ports of packets with a replaced destination, without those of TCP that
            begin a connection.
        namespaces: Names of all named namespaces, if questions about them are due.
    """

    is_periodic: bool = False
    has_drops: bool = False
    has_first_datagram: bool = False
    destinations: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    listeners: tuple[int, ...] = ()
    counted_listeners: tuple[int, ...] = ()
    drop_namespaces: tuple[Netns, ...] = ()
    translated_ports: tuple[tuple[str, int], ...] = ()
    namespaces: tuple[Netns, ...] = ()


class NodeQuestion(ABC, Generic[P, T]):
    """A question with arguments P and answer T."""

    @abstractmethod
    def ask(self, host: HostReader, journal: Journal, /, *args: P.args, **kwargs: P.kwargs) -> Answer[T]:
        """Asks through the journal; `host` reads the machine."""

    @abstractmethod
    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        """Asks what a finding may ask about the packets of a batch."""


@dataclass(frozen=True)
class Setting(NodeQuestion[[], str]):
    """A sysctl of our own namespace; "" = no such sysctl.

    Attributes:
        name: Its path, "net/ipv4/tcp_syncookies".
        is_volatile: Its value after a dropped packet is needed.
    """

    name: str
    is_volatile: bool = False

    def ask(self, host: HostReader, journal: Journal, /) -> Answer[str]:
        kept = VOLATILE_SECONDS if self.is_volatile else KEPT_SECONDS
        return journal(("node", ("setting", self.name, 0)), lambda: host.setting(self.name, kept_seconds=kept), "")

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.is_periodic or (self.is_volatile and occasion.has_drops):
            self.ask(host, journal)


@dataclass(frozen=True)
class ListenerSetting(NodeQuestion[[int], str]):
    """A sysctl in the namespace of a listening process, given by pid; "" = no such sysctl, or the process has ended.

    Attributes:
        name: Its path.
    """

    name: str

    def ask(self, host: HostReader, journal: Journal, pid: int, /) -> Answer[str]:
        return journal(("node", ("setting", self.name, pid)), lambda: host.setting(self.name, pid), "")

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        for pid in occasion.listeners:
            self.ask(host, journal, pid)


@dataclass(frozen=True)
class ListenerCounters(NodeQuestion[[int], dict[str, int]]):
    """TcpExt counters of the namespace of a listening process, given by pid; {} = they cannot be read."""

    def ask(self, host: HostReader, journal: Journal, pid: int, /) -> Answer[dict[str, int]]:
        return journal(("node", ("counters", pid)), lambda: host.counters(pid), dict[str, int]())

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        for pid in occasion.counted_listeners:
            self.ask(host, journal, pid)


@dataclass(frozen=True)
class ConntrackCounters(NodeQuestion[[], dict[str, int]]):
    """conntrack's counters since boot; {} = they cannot be read. A value from before a loss is needed, and one after it."""

    def ask(self, host: HostReader, journal: Journal, /) -> Answer[dict[str, int]]:
        return journal(("node", "conntrack"), host.conntrack_counters, dict[str, int]())

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.is_periodic or occasion.has_drops or occasion.has_first_datagram:
            self.ask(host, journal)


@dataclass(frozen=True)
class BoundSockets(NodeQuestion[[str], tuple[BoundSocket, ...]]):
    """The listening ("tcp") or unconnected ("udp") sockets of the node."""

    def ask(self, host: HostReader, journal: Journal, protocol: str, /) -> Answer[tuple[BoundSocket, ...]]:
        return journal(("node", ("bound", protocol)), lambda: host.bound(protocol), tuple[BoundSocket, ...]())

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.is_periodic:
            for protocol in PROTOCOLS:
                self.ask(host, journal, protocol)


@dataclass(frozen=True)
class Listener(NodeQuestion[[str, int, str], ListeningSocket | None]):
    """The socket that listens on an address and port of the node, with its process; None = no socket.

    It was not asked also if only the process was not asked: it may be the intended listener.
    """

    def ask(
        self, host: HostReader, journal: Journal, address: str, port: int, protocol: str, /
    ) -> Answer[ListeningSocket | None]:
        sockets = BoundSockets().ask(host, journal, protocol)
        if isinstance(sockets, NotAsked):
            return sockets
        best = procnet.receiver(sockets.value, address, port)
        if not best:
            return Known(None)
        owner = _owner(host, journal, best.inode)
        return owner if isinstance(owner, NotAsked) else Known(ListeningSocket(best.address, port, *owner.value))

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.is_periodic:
            for bound in _all_bound(host, journal):
                _owner(host, journal, bound.inode)


@dataclass(frozen=True)
class IsKubeProxy(NodeQuestion[[int], bool]):
    """Whether a listening process, given by pid, is kube-proxy, or k3s, which includes it."""

    def ask(self, host: HostReader, journal: Journal, pid: int, /) -> Answer[bool]:
        return journal(("node", ("is kube-proxy", pid)), lambda: host.is_kube_proxy(pid), False)

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.is_periodic:
            owners = (_owner(host, journal, bound.inode) for bound in _all_bound(host, journal))
            for pid in sorted({owner.value[0] for owner in owners if isinstance(owner, Known)}):
                self.ask(host, journal, pid)


@dataclass(frozen=True)
class ConnectionOf(NodeQuestion[[str, int, str, int], LocalConnection | None]):
    """The connection of a process of the node, by its protocol, its own port, its peer and the peer's port; None = none.

    The node's own address is not compared: a socket that is not connected yet may have none.
    """

    def ask(
        self, host: HostReader, journal: Journal, protocol: str, port: int, peer: str, peer_port: int, /
    ) -> Answer[LocalConnection | None]:
        sockets = _connected(host, journal, protocol, port)
        if isinstance(sockets, NotAsked):
            return sockets
        found = next((s for s in sockets.value if (s.peer, s.peer_port) == (peer, peer_port) and s.inode), None)
        if not found:
            return Known(None)
        owner = _owner(host, journal, found.inode)
        return Known(LocalConnection(*((0, "") if isinstance(owner, NotAsked) else owner.value)))

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        for protocol, port in occasion.translated_ports:
            sockets = _connected(host, journal, protocol, port)
            for socket in sockets.value[:MOST_OWNERS] if isinstance(sockets, Known) else ():
                _owner(host, journal, socket.inode)


def _connected(host: HostReader, journal: Journal, protocol: str, port: int) -> Answer[tuple[ConnectedSocket, ...]]:
    key = ("node", ("connected", protocol, port))
    return journal(key, lambda: host.connected(protocol, port), tuple[ConnectedSocket, ...]())


def _all_bound(host: HostReader, journal: Journal) -> list[BoundSocket]:
    answers = (BoundSockets().ask(host, journal, protocol) for protocol in PROTOCOLS)
    return [bound for answer in answers if isinstance(answer, Known) for bound in answer.value]


def _owner(host: HostReader, journal: Journal, inode: int) -> Answer[tuple[int, str]]:
    """(pid, command) of the process that holds a socket; (0, "") = not found."""
    return journal(("listener", inode), lambda: host.owner(inode), (0, ""))


@dataclass(frozen=True)
class RunningKubeProxy(NodeQuestion[[], KubeProxy | None]):
    """The kube-proxy that runs here; None = none found, or more than one."""

    def ask(self, host: HostReader, journal: Journal, /) -> Answer[KubeProxy | None]:
        return journal(("node", "kube-proxy"), host.kube_proxy, None)

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.is_periodic:
            self.ask(host, journal)


@dataclass(frozen=True)
class ProxyProcesses(NodeQuestion[[], ProxyState | None]):
    """The processes of kube-proxy on this node; None = not known."""

    def ask(self, host: HostReader, journal: Journal, /) -> Answer[ProxyState | None]:
        return journal(("node", "proxy state"), host.proxy_state, None)

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.is_periodic:
            self.ask(host, journal)


@dataclass(frozen=True)
class InterfaceOf(NodeQuestion[[str], str | None]):
    """The interface of our own namespace with an address; "" = none, None = the addresses cannot be read."""

    def ask(self, host: HostReader, journal: Journal, address: str, /) -> Answer[str | None]:
        interfaces = journal(("node", "addresses"), host.addresses, dict[str, str]())
        if isinstance(interfaces, NotAsked):
            return interfaces
        # A namespace without any address is not told from one with addresses that cannot be read.
        return Known(interfaces.value.get(address, "") if interfaces.value else None)

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.is_periodic:
            self.ask(host, journal, "")


@dataclass(frozen=True)
class WayOut(NodeQuestion[[str], str]):
    """The interface by which our own namespace sends to an address; "" = it does not send."""

    def ask(self, host: HostReader, journal: Journal, address: str, /) -> Answer[str]:
        return journal(("node", ("way out", address)), lambda: host.way_out(address), "")

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        for address in occasion.destinations:
            self.ask(host, journal, address)


@dataclass(frozen=True)
class Mtu(NodeQuestion[[str], int]):
    """The MTU of an interface of our own namespace that a dropped packet should have used, bytes; 0 = no such interface."""

    def ask(self, host: HostReader, journal: Journal, interface: str, /) -> Answer[int]:
        return journal(("node", ("mtu", interface)), lambda: host.mtu(interface), 0)

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        ways = (WayOut().ask(host, journal, address) for address in occasion.destinations)
        interfaces = {*occasion.interfaces, *(way.value for way in ways if isinstance(way, Known))}
        for interface in sorted(interfaces - {""}):
            self.ask(host, journal, interface)


@dataclass(frozen=True)
class FlannelSubnets(NodeQuestion[[], tuple[str, ...] | None]):
    """The networks that flannel has leased for this node; () = no lease file, None = one that cannot be read."""

    def ask(self, host: HostReader, journal: Journal, /) -> Answer[tuple[str, ...] | None]:
        return journal(("node", "flannel"), host.flannel_subnets, ())

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.is_periodic:
            self.ask(host, journal)


@dataclass(frozen=True)
class NodePortAddresses(NodeQuestion[[], tuple[str, ...] | None]):
    """The addresses at which kube-proxy's nftables mode answers NodePorts; () = no such set, None = they cannot be read."""

    def ask(self, host: HostReader, journal: Journal, /) -> Answer[tuple[str, ...] | None]:
        return journal(("node", "node port addresses"), host.node_port_addresses, None)

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.has_drops:
            self.ask(host, journal)


@dataclass(frozen=True)
class PacketQueues(NodeQuestion[[], tuple[int, ...] | None]):
    """The queues of NFQUEUE rules to which a process of the node is bound; None = they cannot be read."""

    def ask(self, host: HostReader, journal: Journal, /) -> Answer[tuple[int, ...] | None]:
        return journal(("node", "packet queues"), host.packet_queues, None)

    def prefetch(self, host: HostReader, journal: Journal, occasion: Occasion) -> None:
        if occasion.has_drops:
            self.ask(host, journal)
