# SPDX-License-Identifier: Apache-2.0
"""The packets of the HTML report, by connection, in a form that stays small: equal hops and equal paths are stored once.

Its object is what tracer/export/report/data.js reads:

    hops         the keys of a hop in docs/json.md, without `time_ns`, `acted` and `possible`
    paths        numbers of hops, in order
    lanes        [namespace, interface behind which the lane lies]
    connections  {proto, src, sport, dst, dport, from, to, lanes, packets}; lanes and packets by number
    packets      {number, at, connection, path, times, lanes, verdict, outcome, ...}; lanes are places in the connection's list,
                 at is ns since the first packet, times are ns since the packet's own first hop
    causes       {packet, cause, text, good}: the verdicts on the SYNs among these packets
"""

from __future__ import annotations

import json
from typing import Any

from tracer.connections.index import ConnectionIndex
from tracer.export._lanes import Lane, lanes_of
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.packets.outcome import BAD
from tracer.render.parts.json_packet import endpoints, packet_object

Object = dict[str, Any]
MOST_BAD, MOST_GOOD = 10_000, 10_000
"""Maximum number of packets in the page, with bad and with good outcomes."""
_OF_HOP = ("time_ns", "acted", "possible")
_OF_PACKET = ("proto", "src", "sport", "dst", "dport", "length", "tcp_flags", "verdict", "outcome", "complete", "unexplained")


class ReportPackets:
    """Collects packets and the verdicts on their SYNs, at most MOST_BAD and MOST_GOOD packets."""

    def __init__(self) -> None:
        self._index = ConnectionIndex()
        self._sequence_numbers: dict[int, int] = {}
        self._connections: list[Object] = []
        self._packets: list[Object] = []
        self._causes: list[Object] = []
        self._places: dict[int, int] = {}
        self._hops: dict[str, int] = {}
        self._paths: dict[tuple[int, ...], int] = {}
        self._lanes: dict[Lane, int] = {}
        self._bad = self._good = self._began = 0

    def add(self, packet: Packet) -> bool:
        """Takes a packet. False = there were too many, and it is not on the page."""
        if packet.outcome in BAD or not packet.complete:
            self._bad += 1
            kept = self._bad <= MOST_BAD
        else:
            self._good += 1
            kept = self._good <= MOST_GOOD
        if kept:
            self._keep(packet)
        return kept

    def add_verdict(self, verdict: HandshakeVerdict) -> None:
        """Takes the verdict on a SYN; those on SYNs that are not on the page are left out."""
        number = verdict.attempt.syn.number if verdict.attempt else 0
        if number in self._places:
            cause = verdict.cause
            self._causes.append({"packet": number, "cause": cause.name, "text": cause.text, "good": cause.good})

    def to_object(self) -> Object:
        return {
            "hops": [json.loads(text) for text in self._hops],
            "paths": [list(path) for path in self._paths],
            "lanes": [[lane.netns, lane.beyond] for lane in self._lanes],
            "connections": self._connections,
            "packets": self._packets,
            "causes": self._causes,
        }

    def _keep(self, packet: Packet) -> None:
        self._began = self._began or packet.time
        number = self._connection(packet)
        connection = self._connections[number]
        found = packet_object(packet)
        times = [hop["time_ns"] for hop in found["hops"]]
        row = {key: found[key] for key in _OF_PACKET if found.get(key, "") != ""}
        row |= {"number": packet.number, "at": packet.time - self._began, "connection": number}
        row |= {"path": self._path(found["hops"]), "times": times, "lanes": self._ladder(connection["lanes"], packet)}
        row |= {f"{end}_owner": owner["text"] for end, owner in found.get("ends", {}).items()}
        services = {o.label for o in (packet.src_owner, packet.dst_owner) if o and o.kind == "Service" and o.label}
        if services:
            row["services"] = sorted(services)
        connection["packets"].append(len(self._packets))
        self._places[packet.number] = len(self._packets)
        self._packets.append(row)

    def _connection(self, packet: Packet) -> int:
        """The number of the packet's connection. A SYN with another sequence number begins a new one."""
        syn = packet.tcp_flags == "SYN"
        for number, _ in self._index.numbers(packet):
            if not syn or self._sequence_numbers.get(number, packet.seq) == packet.seq:
                break
        else:
            number = len(self._connections)
            asked = packet.flow.orig if packet.flow else packet.endpoints
            self._connections.append({"proto": packet.protocol, **endpoints(asked), "lanes": [], "packets": []})
        if syn:
            self._sequence_numbers.setdefault(number, packet.seq)
        self._index.add(number, packet)
        return number

    def _path(self, hops: list[Object]) -> int:
        numbers = []
        for hop in hops:
            text = json.dumps({key: value for key, value in hop.items() if key not in _OF_HOP})
            numbers.append(self._hops.setdefault(text, len(self._hops)))
        return self._paths.setdefault(tuple(numbers), len(self._paths))

    def _ladder(self, known: list[int], packet: Packet) -> list[int]:
        """The places of the packet's lanes in its connection's list, which gets the new ones."""
        numbers = [self._lanes.setdefault(lane, len(self._lanes)) for lane in lanes_of(packet)]
        known += [number for number in dict.fromkeys(numbers) if number not in known]
        return [known.index(number) for number in numbers]
