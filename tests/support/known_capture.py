# SPDX-License-Identifier: Apache-2.0
"""A capture with known answers to an operator's questions: two Services, three pods, and packets that were dropped.

shop/cart:http    100 connections, 60 to cart-a and 40 to cart-b; the SYN ACK of number n takes n * 10 us
                  9 SYNs dropped by rule 1 of FORWARD: 5 in the first minute, 4 in the second one
shop/orders       5 connections to orders-a, each SYN ACK takes 2 ms
                  3 SYNs dropped by rule 2 of FORWARD in the second minute, 2 by a full accept queue in the first one
no Service        1 datagram to a port without a socket, in the first minute
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import captures
from tests.support.blobs import R
from tests.support.builders import POD, SECOND, Ends, Trail, swapped
from tests.support.captures import BLOB
from tracer.capture.format.codec import unpack
from tracer.events.record import NOTHING, EventArray
from tracer.events.table_trace import WATCHED
from tracer.kube.objects import Object
from tracer.model.loss import Loss

Row = tuple[Any, ...]
CLIENT = "192.168.56.1"
CART, ORDERS = ("10.96.0.10", 80), ("10.96.0.20", 80)
CART_A, CART_B, ORDERS_A = ("10.244.0.11", 8080), ("10.244.0.12", 8080), ("10.244.0.21", 9090)
CART_GONE, ORDERS_GONE = ("10.244.0.13", 8080), ("10.244.0.23", 9090)
"""Addresses of pods to which rules drop all packets."""
MINUTE_2 = 30 * SECOND
"""A time in the second minute: the epoch of the machine is 40 s after a full minute."""
RULES: captures.Chains = {
    "INPUT": [],
    "FORWARD": [R("DROP", dst=f"{CART_GONE[0]}/32"), R("DROP", dst=f"{ORDERS_GONE[0]}/32")],
    "OUTPUT": [],
}
SYN, SYN_ACK, ACK = 0x02, 0x12, 0x10
NEW, ESTABLISHED, REPLY = 2, 0, 3
"""ct_info."""


def service(name: str, address: str, port_name: str = "") -> Object:
    port = {"port": 80, "protocol": "TCP"} | ({"name": port_name} if port_name else {})
    return {
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIPs": [address], "ports": [port]},
    }


def endpoints(name: str, pods: dict[str, tuple[str, int]], port_name: str = "") -> Object:
    (port,) = {port for _, port in pods.values()}
    return {
        "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"port": port, "protocol": "TCP", "name": port_name}],
        "endpoints": [
            {"addresses": [address], "nodeName": "node-1", "targetRef": {"kind": "Pod", "namespace": "shop", "name": pod}}
            for pod, (address, _) in pods.items()
        ],
    }


def pod(name: str, address: str) -> Object:
    return {
        "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"nodeName": "node-1", "containers": []},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }


OBJECTS: list[Object] = [
    service("cart", CART[0], "http"),
    service("orders", ORDERS[0]),
    endpoints("cart", {"cart-a": CART_A, "cart-b": CART_B, "cart-gone": CART_GONE}, "http"),
    endpoints("orders", {"orders-a": ORDERS_A, "orders-gone": ORDERS_GONE}),
    *(pod(name, at[0]) for name, at in (("cart-a", CART_A), ("cart-b", CART_B), ("orders-a", ORDERS_A))),
    pod("cart-gone", CART_GONE[0]),
    pod("orders-gone", ORDERS_GONE[0]),
]


class _Builder:
    """Numbers packets and client ports."""

    def __init__(self) -> None:
        self.packets, self.port = 0, 20_000

    def trail(self, header: Ends, start: int, orig: Ends, reply: Ends, **fields: int) -> Trail:
        self.packets += 1
        in_name = "eth0" if header == orig else "cni0"
        return Trail(header, self.packets << 8, start, in_name=in_name, orig=orig, reply=reply, **fields)

    def ends(self, asked: tuple[str, int], reached: tuple[str, int]) -> tuple[Ends, Ends]:
        """The original tuple and the tuple after DNAT, of a new client port."""
        self.port += 1
        return (CLIENT, self.port, *asked), (CLIENT, self.port, *reached)

    def syn(self, start: int, orig: Ends, after: Ends) -> Trail:
        return self.trail(orig, start, orig, swapped(after), ct_info=NEW, tcp_flags=SYN, seq=1000).nat("PREROUTING", 1, after)

    def connection(self, start: int, asked: tuple[str, int], reached: tuple[str, int], answer_ns: int) -> EventArray:
        """SYN, SYN ACK after this time, and ACK, of three packets."""
        orig, after = self.ends(asked, reached)
        reply = swapped(after)
        syn = self.syn(start, orig, after).hook("POSTROUTING", in_name="", out_name="cni0")
        syn.add("SOCKET", object=48213, state=10, netns=POD).add("SYN", verdict=1, accept_max=128, syn_len=1, netns=POD)
        answer = self.trail(reply, start + answer_ns, orig, reply, ct_info=REPLY, tcp_flags=SYN_ACK, seq=7000, ack=1001)
        answer.hook("PREROUTING").nat("POSTROUTING", 2, swapped(orig)).hook("POSTROUTING", in_name="", out_name="eth0")
        ack = self.trail(orig, start + answer_ns + 20_000, orig, reply, ct_info=ESTABLISHED, tcp_flags=ACK, seq=1001, ack=7001)
        ack.nat("PREROUTING", 1, after).hook("POSTROUTING", in_name="", out_name="cni0")
        ack.add("SOCKET", object=48213, state=10, netns=POD).add("ACCEPT", verdict=1, accept_max=128, netns=POD)
        return np.concatenate([syn.batch, answer.batch, ack.batch])

    def dropped(self, start: int, asked: tuple[str, int], reached: tuple[str, int]) -> EventArray:
        """A SYN that a rule of FORWARD drops."""
        orig, after = self.ends(asked, reached)
        t = self.syn(start, orig, after)
        t.table("FORWARD", "filter", verdict="DROP", object=BLOB, state=WATCHED, pf=2, out_name="cni0")
        return t.add("DROP", object=0x10, reason=6).batch

    def queue_full(self, start: int, asked: tuple[str, int], reached: tuple[str, int]) -> EventArray:
        """A SYN that a listener with a full accept queue drops. The kernel gives no reason."""
        orig, after = self.ends(asked, reached)
        t = self.syn(start, orig, after).hook("POSTROUTING", in_name="", out_name="cni0")
        t.add("SOCKET", object=48213, state=10, netns=POD)
        return (
            t.add("SYN", verdict=0, accept_len=3, accept_max=2, netns=POD).add("DROP", object=0x20, reason=0, netns=POD).batch
        )

    def no_socket(self, start: int) -> EventArray:
        self.packets += 1
        t = Trail((CLIENT, 40_000, "192.168.56.10", 53), self.packets << 8, start, protocol=17, tcp_flags=0, in_name="eth0")
        return t.hook("INPUT").add("DROP", object=0x30, reason=2).batch


def make(path: Path) -> Path:
    """Makes the capture. Returns its path."""
    build = _Builder()
    made = [captures.table_lookup(150)]
    for n in range(1, 101):
        made.append(build.connection(n * 10_000_000, CART, CART_A if n <= 60 else CART_B, n * 10_000))
    for n in range(5):
        made.append(build.connection(2 * SECOND + n * 10_000_000, ORDERS, ORDERS_A, 2_000_000))
    for n in range(9):
        made.append(build.dropped((3 * SECOND if n < 5 else MINUTE_2) + n * 1_000_000, CART, CART_GONE))
    for n in range(3):
        made.append(build.dropped(MINUTE_2 + SECOND + n * 1_000_000, ORDERS, ORDERS_GONE))
    for n in range(2):
        made.append(build.queue_full(4 * SECOND + n * 1_000_000, ORDERS, ORDERS_A))
    made.append(build.no_socket(5 * SECOND))
    parts = [np.concatenate(made[:2]), *made[2:], NOTHING, NOTHING]
    batches: list[tuple[EventArray, list[Loss]]] = [(part, []) for part in parts]
    return captures.capture(path, batches, objects=OBJECTS, rules=RULES).path


def rows(path: Path) -> tuple[dict[str, Any], list[Row], list[Row]]:
    """The contents of a capture, without its check sums: `meta`, records, batches."""
    with sqlite3.connect(path) as connection:
        meta = {name: unpack(value) for name, value in connection.execute("SELECT name, value FROM meta")}
        records = connection.execute("SELECT turn, kind, key, body FROM records ORDER BY seq").fetchall()
        return (
            meta,
            records,
            connection.execute("SELECT turn, began, ended, events, turns, slots FROM batches ORDER BY seq").fetchall(),
        )
