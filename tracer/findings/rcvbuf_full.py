# SPDX-License-Identifier: Apache-2.0
"""A UDP socket's receive buffer is full: its process reads more slowly than datagrams come, and the kernel drops the rest.

The client sees lost answers without any error: the datagram reached the right socket, and no rule dropped it.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import DropHop, RewriteHop, Socket, SocketHop
from tracer.model.namespace_name import is_host
from tracer.model.packet import Outcome, Packet
from tracer.util.endpoint_format import format_endpoint

REASON = "SOCKET_RCVBUFF"
"""The kernel's drop reason: the bytes that wait in the socket have reached its SO_RCVBUF."""
LARGER_BYTES = 8 << 20
"""A receive buffer for bursts of datagrams, bytes; the kernel's default is 212,992."""


def find(packet: Packet, context: FindingContext) -> Finding | None:
    """Finds datagrams that were dropped because the receive buffer of their socket was full."""
    if packet.outcome is not Outcome.DROPPED or packet.protocol != "UDP":
        return None
    hops = [hop for hop in packet.hops if not hop.clone]
    dropped = next((hop for hop in reversed(hops) if isinstance(hop, DropHop)), None)
    if not dropped or dropped.drop.reason != REASON:
        return None
    reached = next((hop for hop in reversed(hops) if isinstance(hop, SocketHop)), None)
    ends = next((hop.nat.after for hop in reversed(hops) if isinstance(hop, RewriteHop)), packet.endpoints)
    return _finding(packet, dropped, reached.socket if reached else None, ends.dst, ends.dport)


def _finding(packet: Packet, dropped: DropHop, socket: Socket | None, address: str, port: int) -> Finding:
    """address, port: where the datagram arrived, after translation."""
    place = f"{format_endpoint(address, port)} in {dropped.netns}"
    pid = socket.pid if socket else 0
    process = f"{socket.command} (pid {pid})" if socket and pid else "The process of the socket"
    enter = f"nsenter -t {pid} -n " if pid and not is_host(dropped.netns) else ""
    full = f"udp {place}: its receive buffer was full ({REASON})"
    return Finding(
        name="",
        key=(dropped.netns, address, port, socket.inode if socket else 0),
        cause=(
            f"{process} reads too slowly from its UDP socket {place}: the receive buffer of the socket is full, and the kernel"
            " drops the datagrams that do not fit."
        ),
        proofs=(packet_proof(packet), FindingEvidence("socket", full, dropped.evidence.value)),
        check=(
            f"`{enter}ss -uamn 'sport = :{port}'` shows the bytes that wait (r), the size of the buffer (rb) and the dropped"
            f" datagrams (d); `{enter}nstat -az UdpRcvbufErrors` counts them for all sockets."
        ),
        cure=(
            "Let the process read faster: more threads, or several sockets with SO_REUSEPORT. For bursts, set a larger buffer"
            f" with SO_RCVBUF in the program; `sysctl -w net.core.rmem_max={LARGER_BYTES}` allows it."
        ),
        certain=True,
    )
