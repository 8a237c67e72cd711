# SPDX-License-Identifier: Apache-2.0
"""The lines of the lists: a connection, a packet, a finding. Texts of others are escaped, and never read as markup."""

from __future__ import annotations

from rich.text import Text

from tracer.analysis.packet_attribution import attribution_of
from tracer.model.joined_packet import JoinedPacket, ShownPacket
from tracer.model.packet import Packet
from tracer.packets.joined_views import first_packet, first_time, last_packet
from tracer.packets.outcome import BAD
from tracer.render.parts.terminal_text import STYLES, local, outcome_style, plain
from tracer.ui.kept_connections import KeptConnection
from tracer.ui.node_results import NodeFinding, views_of
from tracer.util.endpoint_format import format_endpoint

MOST_ENDS_COLUMNS = 44
"""Largest width of the column with the endpoints, characters: two IPv4 addresses with their ports."""
OUTCOME_COLUMNS = 12


class ConnectionRows:
    """Draws connections. The column with the endpoints is as wide as the widest ones so far."""

    def __init__(self) -> None:
        self._ends_columns = 0

    def draw(self, connection: KeptConnection, width: int) -> Text:
        """Time of the newest packet, protocol, number of packets, endpoints, outcome, Service."""
        start, line = first_packet(connection.start), Text()
        ends = start.flow.orig if start.flow else start.endpoints
        both = plain(f"{format_endpoint(ends.src, ends.sport)} > {format_endpoint(ends.dst, ends.dport)}")
        self._ends_columns = min(MOST_ENDS_COLUMNS, max(self._ends_columns, len(both)))
        line.append("x " if connection.bad else "  ", STYLES["bad"])
        line.append(f"{local(first_time(connection.last))[:8]} ", STYLES["quiet"])
        line.append(f"{plain(start.protocol.upper())[:6]:<5}")
        line.append(f"{short_number(connection.packets):>5} ")
        line.append(f"{both:<{self._ends_columns}} ", STYLES["strong"])
        word, style = outcome(connection)
        line.append(f"{plain(word):<{OUTCOME_COLUMNS}} ", STYLES[style])
        services = (_service(view.packet) for view in views_of(connection.start))
        line.append(plain(next(filter(None, services), "")), STYLES["place"])
        return line


def outcome(connection: KeptConnection) -> tuple[str, str]:
    """How a connection went, in one or two words, and their style: the cause of a failed SYN, else the worst outcome."""
    verdict, packet = connection.verdict, last_packet(connection.worst or connection.last)
    if verdict and not verdict.cause.good:
        return verdict.cause.name, "bad" if connection.bad else "doubt"
    return packet.outcome.value, outcome_style(packet.outcome)


def _service(packet: Packet) -> str:
    """The Service of a packet, or the pod that serves; "" = not known."""
    found = attribution_of(packet)
    if found.service:
        name = f"{found.service_namespace}/{found.service}"
        return f"{name}:{found.service_port}" if found.service_port else name
    return f"{found.workload_namespace}/{found.workload}" if found.workload else ""


def packet_row(shown: ShownPacket, width: int) -> Text:
    """Time, direction, flags, length, nodes, verdict."""
    line, packet, last = Text(), first_packet(shown), last_packet(shown)
    line.append("x " if last.outcome in BAD else "  ", STYLES["bad"])
    line.append(f"{local(first_time(shown))} ", STYLES["quiet"])
    line.append("reply   " if packet.flow and packet.flow.is_reply else "request ")
    line.append(f"{plain(packet.protocol.upper())} {plain(packet.tcp_flags)}".ljust(12), STYLES["change"])
    line.append(f"{packet.length:>5} B  ")
    if isinstance(shown, JoinedPacket):
        line.append(f"{plain(' > '.join(shown.nodes))}  ", STYLES["place"])
    line.append(plain(last.verdict or last.outcome.value), STYLES[outcome_style(last.outcome)])
    if not all(view.packet.complete for view in views_of(shown)):
        line.append("  incomplete", STYLES["doubt"])
    if isinstance(shown, JoinedPacket) and shown.is_doubtful:
        line.append("  ambiguous", STYLES["doubt"])
    return line


def finding_row(found: NodeFinding, width: int) -> Text:
    """Whether it is certain, its node, its name, its cause."""
    line, finding = Text(), found.finding
    style = STYLES["bad" if finding.certain else "doubt"]
    line.append("!! " if finding.certain else "?  ", style)
    if found.node:
        line.append(f"{plain(found.node)}  ", STYLES["place"])
    line.append(plain(finding.name), style)
    line.append(f"  {plain(finding.cause)}")
    return line


def short_number(number: int) -> str:
    """A number in at most five characters: 940, 12.4k, 1.2M."""
    if number < 10_000:
        return str(number)
    thousands = number / 1000
    return f"{thousands:.1f}k" if thousands < 1000 else f"{thousands / 1000:.1f}M"
