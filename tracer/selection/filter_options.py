# SPDX-License-Identifier: Apache-2.0
"""The options that select packets: what the kernel evaluates of them, and what user space does, live and for a capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracer.errors import BadOption
from tracer.kube.end_names import is_name
from tracer.model.filter import PROTOCOLS, Filter, Network, parse_host
from tracer.model.namespace_name import Netns
from tracer.model.port_list import parse_ports
from tracer.model.tcp_flags import parse_tcp_flags
from tracer.selection.display_filter import DisplayFilter
from tracer.selection.pcap_expression import PcapExpression


@dataclass(frozen=True)
class FilterOptions:
    """The values of the options, as typed. The options of Kubernetes' objects are in Selectors."""

    ports: tuple[str, ...] = ()
    source_ports: tuple[str, ...] = ()
    destination_ports: tuple[str, ...] = ()
    excluded_ports: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ()
    excluded_hosts: tuple[str, ...] = ()
    proto: str | None = None
    family: int | None = None
    tcp_flags: tuple[str, ...] = ()
    iface: str | None = None
    netns: str | None = None
    pids: tuple[int, ...] = ()
    commands: tuple[str, ...] = ()
    expression: str = ""
    drops_only: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> FilterOptions:
        """Takes these options out of all options of a command; one that the command does not have is not set."""
        values = {name: options[name] for name in cls.__dataclass_fields__ if options.get(name) is not None}
        for name in ("sources", "destinations"):  # the others are names of objects
            values[name] = tuple(text for text in values.get(name, ()) if not is_name(text))
        return cls(**values)

    def kernel_filter(self) -> Filter:
        """The filter of the probes. Raises BadOption for an invalid value, an unknown interface or namespace."""
        from tracer.node.namespaces import Namespaces, interface_index

        namespaces = Namespaces()
        inode = namespaces.find(self.netns) if self.netns else 0
        if self.iface and inode and inode != namespaces.own:
            raise BadOption("--iface needs an interface of the current namespace: for another namespace, use --netns alone.")
        return Filter(
            netns=inode,
            ifindex=interface_index(self.iface) if self.iface else 0,
            if_netns=namespaces.own if self.iface else 0,
            drops_only=self.drops_only,
            protocol=PROTOCOLS[self.proto] if self.proto else 0,
            family=self.family or 0,
            ports=parse_ports(self.ports, "--port"),
            source_ports=parse_ports(self.source_ports, "--sport"),
            destination_ports=parse_ports(self.destination_ports, "--dport"),
            excluded_ports=parse_ports(self.excluded_ports, "--not-port"),
            hosts=_networks(self.hosts),
            sources=_networks(self.sources),
            destinations=_networks(self.destinations),
            excluded_hosts=_networks(self.excluded_hosts),
            tcp_flags=parse_tcp_flags(self.tcp_flags),
        )

    def live_filter(self) -> DisplayFilter:
        """What user space evaluates of a run on attached probes: what the kernel cannot, or only for a packet's first event."""
        return DisplayFilter(
            excluded_ports=frozenset(parse_ports(self.excluded_ports, "--not-port")),
            excluded_hosts=_networks(self.excluded_hosts),
            pids=frozenset(self.pids),
            commands=frozenset(self.commands),
            expression=_compiled(self.expression),
        )

    def capture_filter(self) -> DisplayFilter:
        """What user space evaluates of a capture: everything. Raises BadOption for an invalid value."""
        Filter(hosts=(*_networks(self.hosts), *_networks(self.sources), *_networks(self.destinations)))
        return DisplayFilter(
            protocol=self.proto or "",
            family=self.family or 0,
            iface=self.iface or "",
            netns=Netns(self.netns or ""),
            ports=frozenset(parse_ports(self.ports, "--port")),
            source_ports=frozenset(parse_ports(self.source_ports, "--sport")),
            destination_ports=frozenset(parse_ports(self.destination_ports, "--dport")),
            excluded_ports=frozenset(parse_ports(self.excluded_ports, "--not-port")),
            hosts=_networks(self.hosts),
            sources=_networks(self.sources),
            destinations=_networks(self.destinations),
            excluded_hosts=_networks(self.excluded_hosts),
            tcp_flags=parse_tcp_flags(self.tcp_flags),
            pids=frozenset(self.pids),
            commands=frozenset(self.commands),
            expression=_compiled(self.expression),
        )


def _networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(parse_host(text) for text in texts)


def _compiled(expression: str) -> PcapExpression | None:
    return PcapExpression.compiled(expression) if expression else None
