# SPDX-License-Identifier: Apache-2.0
"""The options that select packets. `trace`, `record` and the commands that read captures have all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tracer.model.filter import PROTOCOLS

PORTS, CIDR, END = "PORTS", "CIDR", "END"
"""Values: a list such as 80,443,30000-32767; an address or network; one of these, or the name of an object."""


def _many(*names: str, metavar: str, text: str, kind: type = str) -> Callable[[Any], Any]:
    """An option that may be repeated: each value is an alternative."""
    return click.option(*names, type=kind, multiple=True, metavar=metavar, help=text)


FILTER_OPTIONS = (
    _many("-p", "--port", "ports", metavar=PORTS, text="Either end, before or after NAT: 80,443,9000-9999."),
    _many("--host", "hosts", metavar=CIDR, text="Address or network, matched like --port."),
    _many("--sport", "source_ports", metavar=PORTS, text="Source ports of the packet's direction."),
    _many("--dport", "destination_ports", metavar=PORTS, text="Destination ports, before or after NAT."),
    _many("--src", "sources", metavar=END, text="Source: CIDR, pod/NS/X, svc/NS/X, deploy/NS/X or ns/NS."),
    _many("--dst", "destinations", metavar=END, text="Destination, before or after NAT, as for --src."),
    _many("--not-port", "excluded_ports", metavar=PORTS, text="Leave out packets with such a port."),
    _many("--not-host", "excluded_hosts", metavar=CIDR, text="Leave out packets with such an address."),
    _many("--service", "services", metavar="NS/NAME[:PORT]", text="A Service, by any of its addresses."),
    _many("--pod", "pods", metavar="NS/NAME", text="A pod's own address."),
    _many("--workload", "workloads", metavar="KIND/NAME", text="Its pods: deploy/x, sts/x, ds/x; or NS/deploy/x."),
    _many("-l", "--selector", "labels", metavar="LABELS", text="Pods with these labels: app=web,tier!=db."),
    _many("--namespace", "namespaces", metavar="NS", text="All Services and pods of NS; or where -l and names are looked up."),
    _many("--node-port", "node_ports", metavar="PORT", kind=int, text="A NodePort on this node."),
    _many("--host-port", "host_ports", metavar="PORT", kind=int, text="A hostPort of this node's pods."),
    click.option("--proto", type=click.Choice(sorted(PROTOCOLS)), metavar="PROTO", help="tcp, udp, sctp, icmp or icmpv6."),
    click.option("-4", "family", flag_value=4, type=int, help="IPv4 only."),
    click.option("-6", "family", flag_value=6, type=int, help="IPv6 only."),
    _many("--tcp-flags", "tcp_flags", metavar="FLAGS", text="SYN: set; SYN,not-ACK: set and not set."),
    click.option("--filter", "expression", metavar="EXPR", help="A pcap-filter expression, on the packet as first seen."),
    _many("--pid", "pids", metavar="PID", kind=int, text="Packets that reached a socket of this process."),
    _many("--comm", "commands", metavar="NAME", text="The same, by the process's name."),
    click.option("--iface", metavar="NAME", help="Packets that pass this interface."),
    click.option("--netns", metavar="NAME", help="Packets in a namespace: node, NAME, pid:N, PATH."),
    click.option("--drops-only", is_flag=True, help="Only packets that did not reach their destination."),
)

NAMES = frozenset({
    "ports", "hosts", "source_ports", "destination_ports", "sources", "destinations", "excluded_ports", "excluded_hosts",
    "services", "pods", "workloads", "labels", "namespaces", "node_ports", "host_ports", "proto", "family", "tcp_flags",
    "expression", "pids", "commands", "iface", "netns", "drops_only",
})  # fmt: skip
"""The names of their parameters."""


def with_filters(function: Any) -> Any:
    """Adds the options that select packets."""
    for option in reversed(FILTER_OPTIONS):
        function = option(function)
    return function
