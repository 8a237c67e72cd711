# SPDX-License-Identifier: Apache-2.0
"""Captures of two nodes: a client asks a NodePort of node-a, and the pod that answers is on node-b.

    1 connection     SYN, SYN-ACK and ACK, of which both nodes see each
    1 SYN            left node-a, and never came to node-b
    1 SYN            is dropped by a rule of node-b

The times of packets are between those of the first batches and the last ones, which are 30 s later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tests.support import captures
from tests.support.blobs import R
from tests.support.builders import POD, SECOND, Ends, Trail, swapped
from tests.support.captures import BLOB
from tests.support.known_capture import rows
from tracer.capture.record import environment
from tracer.capture.record.capture_files import RotationLimits
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.cluster.node_captures import NodeCaptures
from tracer.commands import read_nodes
from tracer.events.record import EventArray
from tracer.events.table_trace import WATCHED
from tracer.kube.objects import Object
from tracer.kube.selectors import Selectors
from tracer.model.loss import Loss
from tracer.pipeline.shutdown import StopRequest
from tracer.protocol.capture_pieces import CaptureTransaction, pieces
from tracer.ui.feed import ScreenFeed

CLIENT, NODE_A, NODE_B = "192.168.56.1", "192.168.56.10", "192.168.56.11"
FLANNEL_A, POD_B = "10.244.1.0", "10.244.2.8"
NODE_PORT, PORT = 30080, 8080
NODES = ("node-a", "node-b")
SYN, SYN_ACK, ACK = 0x02, 0x12, 0x10
NEW, ESTABLISHED, REPLY = 2, 0, 3
"""ct_info."""
WIRE_NS = 400_000
"""Time on the wire, ns."""
BEGAN = 100 * SECOND
"""Time of the first batch, ns, CLOCK_MONOTONIC of both nodes."""
LAST = BEGAN + 30 * SECOND
"""Time of the last batch."""


def node(name: str, address: str) -> Object:
    return {
        "kind": "Node", "metadata": {"name": name}, "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    }  # fmt: skip


OBJECTS: tuple[Object, ...] = (
    node("node-a", NODE_A),
    node("node-b", NODE_B),
    {
        "kind": "Service", "metadata": {"namespace": "shop", "name": "cart"},
        "spec": {
            "clusterIP": "10.96.0.10", "type": "NodePort",
            "ports": [{"name": "http", "port": 80, "targetPort": PORT, "nodePort": NODE_PORT, "protocol": "TCP"}],
        },
    },
    {
        "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": "cart-1", "labels": {"kubernetes.io/service-name": "cart"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [POD_B], "nodeName": "node-b", "targetRef": {"kind": "Pod", "namespace": "shop", "name": "cart-b"}}
        ],
    },
    {
        "kind": "Pod", "metadata": {"namespace": "shop", "name": "cart-b"}, "spec": {"nodeName": "node-b"},
        "status": {"podIP": POD_B, "phase": "Running"},
    },
)  # fmt: skip


@dataclass
class Exchange:
    """The packets of one connection. start: ns after BEGAN; number: of its first packet."""

    port: int
    start: int
    number: int
    a: list[EventArray] = field(default_factory=list)
    b: list[EventArray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked: Ends = (CLIENT, self.port, NODE_A, NODE_PORT)
        self.reached: Ends = (CLIENT, self.port, POD_B, PORT)
        self.sent: Ends = (FLANNEL_A, self.port, POD_B, PORT)

    def _trail(self, header: Ends, at: int, in_name: str, flags: int, **fields: Any) -> Trail:
        self.number += 1
        ident = 100 * self.port + at // 1_000_000
        return Trail(
            header, self.number << 8, BEGAN + self.start + at, in_name=in_name, tcp_flags=flags, ident=ident % 65536, **fields
        )

    def request(self, at: int, flags: int, seq: int, is_lost: bool = False, is_dropped: bool = False) -> None:
        """A packet from the client to the pod. at: ns after the first one."""
        info = NEW if flags == SYN else ESTABLISHED
        a = self._trail(self.asked, at, "eth0", flags, seq=seq, orig=self.asked, reply=swapped(self.sent), ct_info=info)
        a.hook("PREROUTING").nat("PREROUTING", 1, self.reached).nat("POSTROUTING", 0, self.sent)
        self.a.append(a.hook("POSTROUTING", in_name="", out_name="flannel.1").batch)
        if is_lost:
            return
        left = a.time - BEGAN - self.start
        b = self._trail(
            self.sent, left + WIRE_NS, "flannel.1", flags, seq=seq, orig=self.sent, reply=swapped(self.sent), ct_info=info
        )
        b.fields["ident"] = a.fields["ident"]
        b.hook("PREROUTING")
        if is_dropped:
            b.table("FORWARD", "filter", verdict="DROP", object=BLOB, state=WATCHED, pf=2, out_name="cni0")
            b.add("DROP", object=0x10, reason=6)
        else:
            b.hook("POSTROUTING", in_name="", out_name="cni0").add("SOCKET", object=48213, state=10, netns=POD)
            b.add("SYN" if flags == SYN else "ACCEPT", verdict=1, accept_max=128, netns=POD)
        self.b.append(b.batch)

    def answer(self, at: int) -> None:
        """The SYN-ACK of the pod."""
        common = {"seq": 7000, "ack": 1001, "ct_info": REPLY}
        b = self._trail(swapped(self.sent), at, "cni0", SYN_ACK, orig=self.sent, reply=swapped(self.sent), **common)
        b.hook("PREROUTING")
        self.b.append(b.hook("POSTROUTING", in_name="", out_name="flannel.1").batch)
        left = b.time - BEGAN - self.start
        a = self._trail(
            swapped(self.sent), left + WIRE_NS, "flannel.1", SYN_ACK, orig=self.asked, reply=swapped(self.sent), **common
        )
        a.fields["ident"] = b.fields["ident"]
        a.hook("PREROUTING").nat("PREROUTING", 3, (POD_B, PORT, CLIENT, self.port))
        a.nat("POSTROUTING", 2, swapped(self.asked))
        self.a.append(a.hook("POSTROUTING", in_name="", out_name="eth0").batch)


def scene(has_loss: bool = True) -> dict[str, list[EventArray]]:
    """The events of each node. has_loss: one SYN never comes to node-b."""
    whole = Exchange(40001, SECOND, 0)
    whole.request(0, SYN, 1000)
    whole.answer(1_500_000)
    whole.request(3_000_000, ACK, 1001)
    dropped = Exchange(40003, 3 * SECOND, 30)
    dropped.request(0, SYN, 3000, is_dropped=True)
    lost = Exchange(40002, 2 * SECOND, 20)
    lost.request(0, SYN, 2000, is_lost=True)
    parts = (whole, lost, dropped) if has_loss else (whole, dropped)
    return {"node-a": [each for part in parts for each in part.a], "node-b": [each for part in parts for each in part.b]}


@contextmanager
def _on(name: str, times: Sequence[int]) -> Any:
    """A block in which captures are those of a node. times: of its batches; the last one is repeated."""
    clock = iter(times)
    with (
        mock.patch.dict(os.environ, {"NODE_NAME": name}),
        mock.patch.object(environment, "boot_id", lambda: f"boot of {name}"),
        mock.patch("time.monotonic_ns", lambda: next(clock, times[-1])),
    ):
        yield


def make(
    directory: Path,
    events: Mapping[str, Sequence[EventArray]] | None = None,
    losses: Mapping[str, Sequence[Loss]] | None = None,
    offsets: Mapping[str, int] | None = None,
    began: int = BEGAN,
    until: int = LAST,
    **options: Any,
) -> list[Path]:
    """Makes the captures of both nodes, as `kubectl k8snet-trace -w` writes them.

    Args:
        directory: Where they are written: node-a.k8st, node-b.k8st.
        events: Those of each node; None = the scene.
        losses: Losses of a node, in its second batch.
        offsets: Of the nodes' clocks, ns; a node without one has no clock in its capture. None = 0 for both.
        began: Time of the first batch of node-b, ns.
        until: Time of the last batches, ns.
        options: Further arguments of captures.capture.
    """
    offsets = dict.fromkeys(NODES, 0) if offsets is None else offsets
    made = []
    for name, parts in (events or scene()).items():
        path = directory / f"{name}.raw.k8st"
        whole = np.concatenate([captures.table_lookup(150), *parts])
        first = began if name == "node-b" else BEGAN
        times = [first, first, until - SECOND // 2, until]
        batches = [(whole[:0], []), (whole, list((losses or {}).get(name, ()))), (whole[:0], []), (whole[:0], [])]
        with _on(name, times):
            captures.capture(path, batches, **{"objects": OBJECTS, "rules": RULES} | options)
        if name in offsets:
            made.append(with_clock(path, name, offsets[name]))
        else:
            made.append(path.rename(directory / f"{name}.k8st"))
    return made


RULES: captures.Chains = {"INPUT": [], "FORWARD": [R("DROP", protocol=6)], "OUTPUT": []}


def with_clock(path: Path, name: str, offset: int, error: int = 50_000) -> Path:
    """The same capture with the clock of its node. offset, error: ns."""
    captured = NodeCaptures(path.parent, RotationLimits())
    meta, records, batches = rows(path)
    meta = {key: value for key, value in meta.items() if key not in ("parts", "repeated")}
    sent = CaptureTransaction(meta, records, None)
    for transaction in (sent, *(CaptureTransaction(None, [], batch) for batch in batches)):
        for piece in pieces(transaction):
            captured.feed(name, piece, offset, error)
    (written,) = captured.close()
    with CaptureReader(str(written)) as capture:
        assert capture.clock() == (offset, error) and not capture.missed
    path.unlink()
    return written


def feed(paths: Sequence[Path]) -> ScreenFeed:
    """The feed of `ui` with captures that were read to their ends."""
    made = ScreenFeed()
    captures_of = read_nodes.by_node([str(path) for path in paths])
    totals = read_nodes.replayed(captures_of, (), {}, made, StopRequest(0))
    made.summary(totals.summary)
    made.end()
    return made


def by_service() -> Selectors:
    """The filter of a run by a Service."""
    return replace(Selectors(), services=("shop/cart",))
