# SPDX-License-Identifier: Apache-2.0
"""Many packets, counted on both sides: a paced stream that is not traced, and a blast for measurements.

Both are one UDP flow from the client, sent by a forked child, so that the caller continues at the same time.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scenes.mmsg import Batch
from scenes.netns import Child, entered
from scenes.topology import CLIENT, DRAIN, DRAIN4, NODE4, PODS
from scenes.traffic import NODEPORT_UDP

SMALLEST = 18
"""UDP payload, in bytes, of the smallest Ethernet frame over IPv4: 64 bytes with its checksum."""
_BATCH = 64


@dataclass(frozen=True)
class Sent:
    """packets: number accepted by the sender's sendmmsg; seconds: from the first to the last."""

    packets: int
    seconds: float

    @property
    def rate(self) -> float:
        """Packets per second."""
        return self.packets / self.seconds if self.seconds else 0.0


def udp_stream(
    rate: float,
    seconds: float,
    addr: str = DRAIN4,
    port: int = 9,
    *,
    ns: str | None = CLIENT,
    payload: int = SMALLEST,
    sport: int = 0,
) -> Child[Sent]:
    """Start sending `rate` packets/s for `seconds`; .result() waits and returns Sent.

    The node forwards packets to the default address, and nothing comes back. A sender that is too slow sends less than
    rate * seconds; it does not take longer.
    """
    return Child(ns, partial(_stream, rate, seconds, addr, port, payload, sport), comm="scene-stream")


def udp_blast(
    seconds: float,
    addr: str = NODE4,
    port: int = NODEPORT_UDP,
    *,
    ns: str | None = CLIENT,
    payload: int = SMALLEST,
    sport: int = 0,
) -> Child[Sent]:
    """The same at full speed, by default through the NodePort to one pod (give the pods sink=True)."""
    return Child(ns, partial(_stream, None, seconds, addr, port, payload, sport), comm="scene-blast")


def interface_packets(ns: str | None, interface: str = "eth0") -> tuple[int, int]:
    """(received, sent) packets of an interface since it was made. KeyError if there is none."""
    with entered(ns):
        text = Path("/proc/thread-self/net/dev").read_text()
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() == interface:
            fields = rest.split()
            return int(fields[1]), int(fields[9])
    raise KeyError(f"no interface {interface} in {ns or 'the node'}")


def pods_received() -> int:
    """The number of packets that have reached the pods' interfaces, in all."""
    return sum(interface_packets(pod.name)[0] for pod in PODS)


def drained() -> int:
    """The number of packets that the node has forwarded to udp_stream's default address."""
    return interface_packets(None, DRAIN)[1]


def udp_counters(ns: str | None) -> dict[str, int]:
    """The namespace's UDP counters over IPv4 ("InDatagrams", "RcvbufErrors", ...)."""
    with entered(ns):
        lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    names, values = (line.split()[1:] for line in lines if line.startswith("Udp:"))
    return {name: int(value) for name, value in zip(names, values, strict=True)}


def _stream(rate: float | None, seconds: float, addr: str, port: int, payload: int, sport: int) -> Sent:
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    batch = Batch(_BATCH, payload)
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        if sport:
            sock.bind(("", sport))
        sock.connect((addr, port))
        fd, sent, began = sock.fileno(), 0, time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            if rate is None:
                sent += batch.send(fd, _BATCH)
            elif (due := int(rate * passed) - sent) > 0:
                sent += batch.send(fd, due)
            else:
                time.sleep(0.0005)
        # the last packets, which became due during the last sleep
        while rate is not None and 0 < (due := int(rate * seconds) - sent) <= _BATCH:
            sent += batch.send(fd, due)
        return Sent(sent, time.monotonic() - began)
