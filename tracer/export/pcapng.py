# SPDX-License-Identifier: Apache-2.0
"""The pcapng export for Wireshark and tshark: each packet's headers, with the decisions about it as a comment.

Each packet is written as it arrived, and again after each rewrite, unless `--as-it-came` is given; the copies have the same
packet identity. With `--snaplen` its recorded bytes are written; after a rewrite they have the new addresses and ports, and no
transport checksum. Without `--snaplen` only headers were recorded. They are rebuilt from the known fields, with empty
checksums, like a truncated packet (its length is the real one). TTL, window and TCP options are then invented.

The verdict stands in the comment: the format's own option for it (epb_verdict) has values for hardware and for eBPF programs
at tc and XDP, and none for netfilter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracer import __version__
from tracer.events.record import PROTOCOLS, TCP_FLAGS
from tracer.export import CaptureInfo, Export, ExportOptions
from tracer.export import _pcapng_blocks as blocks
from tracer.export._address_names import AddressNames
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Hop, RewriteHop, RuleHop, decision_of, nat_of, owner_of, verdict_of
from tracer.model.netfilter import PASSES
from tracer.model.packet import Packet
from tracer.model.rule import format_path
from tracer.model.summary import RunSummary
from tracer.util.escape import escaped
from tracer.util.evictions import evictions
from tracer.util.new_file import fresh
from tracer.util.optional import require_optional

DESCRIPTION = "packets' headers with comments, for Wireshark"
OPTIONS = frozenset({"as_it_came"})
MOST_INTERFACES, MORE_INTERFACES = 65_536, "more interfaces"
"""Maximum number of interfaces of a file; packets of all others have one interface in common."""
NUMBERS = {name: number for number, name in PROTOCOLS.items()}


@dataclass(frozen=True)
class PcapngPacket:
    """One packet of the file. time: in ns since the epoch."""

    time: int
    interface: str
    ends: Endpoints
    comment: str


def _without_interfaces() -> None:
    """Imports scapy without reading this machine's interfaces and routes, which it does by netlink on the import of its layers.

    No packet is sent, so they are not needed. An export must not depend on the machine.
    """
    import logging

    require_optional("scapy", "pcapng")
    logging.getLogger("scapy").setLevel(logging.CRITICAL)
    conf: Any = require_optional("scapy.config", "pcapng").conf
    conf.route_autoload = conf.route6_autoload = False
    require_optional("scapy.interfaces", "pcapng")
    conf.ifaces.reload = conf.ifaces.load_confiface = lambda: None


class Pcapng(Export):
    """Writes the file. scapy makes the headers."""

    def __init__(self, target: Path, about: CaptureInfo, options: ExportOptions = ExportOptions()) -> None:  # noqa: B008
        _without_interfaces()
        self._inet: Any = require_optional("scapy.layers.inet", "pcapng")
        self._inet6: Any = require_optional("scapy.layers.inet6", "pcapng")
        self._raw: Any = require_optional("scapy.packet", "pcapng").Raw
        self._as_it_came = options.as_it_came
        self._names = AddressNames()
        self._interfaces: dict[str, int] = {}
        self._file = open(fresh(target), "wb")  # noqa: SIM115  # closed by close()
        program = f"k8snet-trace {__version__}"
        self._file.write(blocks.section_header(escaped(f"Linux {about.kernel}"), program, escaped(about.options)))

    def packet(self, packet: Packet) -> None:
        self._names.add(packet)
        shown = as_shown(packet)
        for each in shown[:1] if self._as_it_came else shown:
            self._write(packet, each)

    def _write(self, packet: Packet, shown: PcapngPacket) -> None:
        data = self._bytes(packet, shown.ends)
        number = self._interface(escaped(shown.interface))
        length = max(packet.length, len(data))
        # All newlines in a comment are ours: control characters of untrusted text are made visible before.
        self._file.write(blocks.packet(number, shown.time, data, length, packet.number, shown.comment))

    def _interface(self, name: str) -> int:
        """The number of an interface, of which the block is written when it is met first."""
        if name not in self._interfaces:
            if len(self._interfaces) >= MOST_INTERFACES:
                evictions.add("interfaces of a file")
                name = MORE_INTERFACES
            if name not in self._interfaces:
                self._file.write(blocks.interface(name))
        return self._interfaces.setdefault(name, len(self._interfaces))

    def _bytes(self, packet: Packet, ends: Endpoints) -> bytes:
        made = bytes(self._headers(packet, ends))
        if len(packet.raw) < len(made):
            return made
        ip = (self._inet6.IPv6 if packet.raw[0] >> 4 == 6 else self._inet.IP)(packet.raw)
        with_ports = next((ip[kind] for kind in (self._inet.TCP, self._inet.UDP) if kind in ip), None)
        if (ip.src, ip.dst) == (ends.src, ends.dst) and (
            not with_ports or (with_ports.sport, with_ports.dport) == (ends.sport, ends.dport)
        ):
            return packet.raw
        ip.src, ip.dst = ends.src, ends.dst
        if ip.version == 4:
            del ip.chksum
        if with_ports:
            with_ports.sport, with_ports.dport, with_ports.chksum = ends.sport, ends.dport, 0
        return bytes(ip)

    def _headers(self, packet: Packet, ends: Endpoints) -> Any:
        number = NUMBERS.get(packet.protocol, int(packet.protocol) if packet.protocol.isdigit() else 0)
        if ":" in ends.src:
            network = self._inet6.IPv6(src=ends.src, dst=ends.dst, nh=number, plen=max(0, packet.length - 40) or None)
        else:
            network = self._inet.IP(src=ends.src, dst=ends.dst, proto=number, len=packet.length or None)
        if packet.protocol == "TCP":
            flags = sum(bit for bit, name in TCP_FLAGS if name in packet.tcp_flags.split())
            return network / self._inet.TCP(sport=ends.sport, dport=ends.dport, seq=packet.seq, flags=flags, window=0, chksum=0)
        if packet.protocol == "UDP":
            length = max(8, packet.length - (40 if ":" in ends.src else 20))
            return network / self._inet.UDP(sport=ends.sport, dport=ends.dport, len=length, chksum=0)
        if packet.protocol in ("SCTP", "DCCP", "UDPLITE"):
            return network / self._raw(ends.sport.to_bytes(2, "big") + ends.dport.to_bytes(2, "big") + bytes(8))
        return network

    def finding(self, finding: Finding) -> None:
        """Writes nothing: a finding belongs to many packets. The other formats have the findings."""

    def close(self, summary: RunSummary) -> None:
        with self._file as file:
            if names := self._names.by_address():
                file.write(blocks.names(names))


def as_shown(packet: Packet) -> list[PcapngPacket]:
    """Returns the packet as it arrived, with its verdict, and after each rewrite, with the owner of the rewrite."""
    began = packet.hops[0].time if packet.hops else 0
    interface = f"{packet.netns}/{packet.iface}" if packet.iface else packet.netns or "unknown"
    found = [PcapngPacket(packet.time, interface, packet.endpoints, _verdict(packet))]
    for hop in packet.hops:
        if isinstance(hop, RewriteHop) and not hop.clone:
            when = packet.time + hop.time - began
            where = f"{hop.netns}/{hop.out_iface or hop.in_iface or 'rewritten'}"
            found.append(PcapngPacket(when, where, hop.nat.after, f"packet {packet.number}: {_hop(hop, hop.nat.kind)}"))
    return found


def _verdict(packet: Packet) -> str:
    lines = [f"packet {packet.number}: {packet.verdict}" + ("" if packet.complete else " (incomplete)")]
    if packet.unexplained:
        lines.append("not explained by the run")
    lines.append(f"outcome={packet.outcome}")
    ends = (("from", packet.src_owner), ("to", packet.dst_owner))
    lines += [f"{end}={owner.text}" for end, owner in ends if owner and owner.known]
    for hop in packet.hops:
        nat, verdict = nat_of(hop), verdict_of(hop)
        if not hop.clone and (nat or verdict not in PASSES):
            lines.append(_hop(hop, nat.kind if nat else verdict))
    return "\n".join(map(escaped, lines))


def _hop(hop: Hop, what: str) -> str:
    decision, owner = decision_of(hop), owner_of(hop)
    names = (hop.table, hop.base_chain) if isinstance(hop, RuleHop) else ()
    place = " ".join(p for p in (hop.netns, hop.hook, *names) if p)
    rule = f" rule={format_path(decision.path)}" + (f": {decision.rule.text}" if decision.rule else "") if decision else ""
    if decision and decision.hotdrop:
        rule += f" [{decision.hotdrop}]"
    return escaped(f"{place}: {what}{rule}" + (f" owner={owner.text}" if owner else ""))


EXPORT = Pcapng
