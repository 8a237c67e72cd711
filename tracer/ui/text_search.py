# SPDX-License-Identifier: Apache-2.0
"""Searches packets by text: each word has to occur in what the screen shows of a packet."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.model.hop import DropHop, Hop, RuleHop, SocketHop, nat_of, owner_of, trace_of, verdict_of
from tracer.model.joined_packet import ShownPacket
from tracer.model.packet import Packet
from tracer.model.rule import format_path
from tracer.packets.path_memo import PathMemo
from tracer.ui.kept_connections import KeptConnection
from tracer.ui.node_results import views_of
from tracer.util.endpoint_format import format_endpoint


class TextSearch:
    """A search for packets.

    Args:
        text: The words; case does not matter. "" = each packet matches.

    Attributes:
        words: The words.
    """

    def __init__(self, text: str = "") -> None:
        self.words = tuple(text.casefold().split())

    def matches(self, shown: ShownPacket, cause: str = "") -> bool:
        """Whether all words occur in the text of a packet. cause: The causes of the SYN."""
        if not self.words:
            return True
        views = (f"{view.node}\n{_PATHS.of(view.packet)}\n{_ends(view.packet)}" for view in views_of(shown))
        text = "\n".join((*views, cause)).casefold()
        return all(word in text for word in self.words)

    def packets(self, connection: KeptConnection) -> list[ShownPacket]:
        """The kept packets of a connection that match, oldest first."""
        if not self.words:
            return list(connection.kept())
        return [packet for packet in connection.kept() if self.matches(packet, _cause(connection, packet))]


class ConnectionSearch:
    """The connections with a matching packet. Only packets that came since the last look are searched."""

    def __init__(self, search: TextSearch) -> None:
        self.search = search
        self._seen: dict[KeptConnection, tuple[int, bool, object]] = {}

    def select(self, connections: list[KeptConnection]) -> list[KeptConnection]:
        """The connections with a kept packet that matches, in the same order."""
        if not self.search.words:
            return connections
        before, self._seen = self._seen, {}
        return [connection for connection in connections if self._matches(connection, before.get(connection, (0, False, None)))]

    def _matches(self, connection: KeptConnection, seen: tuple[int, bool, object]) -> bool:
        count, found, verdict = seen
        if not found and (count != connection.packets or verdict is not connection.verdict):
            kept = list(connection.kept())
            new = kept if verdict is not connection.verdict else kept[max(0, len(kept) - (connection.packets - count)) :]
            found = any(self.search.matches(packet, _cause(connection, packet)) for packet in new)
        self._seen[connection] = (connection.packets, found, connection.verdict)
        return found


def _cause(connection: KeptConnection, shown: ShownPacket) -> str:
    return "\n".join(found.verdict.cause.text for found in connection.verdicts_of(shown))


def _ends(packet: Packet) -> str:
    """What differs between packets on one path: endpoints, their owners, flags."""
    every = [packet.endpoints, *((packet.flow.orig, packet.flow.reply) if packet.flow else ())]
    words = [format_endpoint(*end) for ends in every for end in ((ends.src, ends.sport), (ends.dst, ends.dport))]
    words += [owner.text for owner in (packet.src_owner, packet.dst_owner) if owner]
    words += [packet.protocol, packet.family, packet.tcp_flags, packet.flow.state if packet.flow else ""]
    return "\n".join(words)


def _path(packet: Packet) -> str:
    """What is equal for all packets on one path."""
    words = [packet.outcome.value, packet.verdict, packet.netns, packet.iface]
    words += [word for hop in packet.hops for word in _hop(hop) if word]
    return "\n".join(dict.fromkeys(words))


_PATHS = PathMemo(_path)


def _hop(hop: Hop) -> Iterator[str]:
    yield from (hop.netns, hop.hook, hop.in_iface, hop.out_iface, verdict_of(hop))
    if isinstance(hop, RuleHop):
        yield hop.place
    if owner := owner_of(hop):
        yield owner.text
    if trace := trace_of(hop):
        if hit := trace.decision:
            yield format_path(hit.path)
            yield hit.rule.text if hit.rule else ""
        yield trace.undecided
    if nat := nat_of(hop):
        # A port that the connection chose belongs to one packet; ports are in conntrack's tuples.
        yield from (nat.kind, nat.after.src, nat.after.dst)
    match hop:
        case SocketHop():
            yield f"{hop.socket.state} {hop.socket.command} pid {hop.socket.pid}"
        case DropHop():
            yield f"{hop.drop.reason} {hop.drop.function}"
            if hop.drop.program:
                yield hop.drop.program.text
