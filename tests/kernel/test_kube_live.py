# SPDX-License-Identifier: Apache-2.0
"""An API server that is away, comes, dies, comes back, forgets and refuses while packets are traced on a real kernel.

The server speaks list and watch over HTTP (tests/support/api_server.py), with objects recorded on a real cluster.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from scenes import topology, traffic
from tests.kernel.watching import NOTHING, Watch
from tests.support import waiting
from tests.support.api_server import ApiServer
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.filter import Filter
from tracer.model.packet import Packet
from tracer.node.namespaces import Namespaces, tracking
from tracer.node.processes import Processes
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.pipeline.live_source import LiveSource
from tracer.pipeline.run import Run, RunLimits
from tracer.pipeline.shutdown import StopRequest
from tracer.render.text import TextOutput
from tracer.rules import live_resolver

SERVICE = "Service default/http-proxy"


class Told(TextOutput):
    """Keeps what a run says."""

    def __init__(self) -> None:
        super().__init__(StringIO(), StringIO())
        self.packets: list[Packet] = []
        self.notes: list[str] = []
        self.asked: set[int] = set()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def packet(self, packet: Packet) -> None:
        super().packet(packet)
        self.packets.append(packet)
        self.goes_on.wait()

    def note(self, text: str) -> None:
        self.notes.append(text)


@contextmanager
def running(watch: Watch, kube: OwnerResolver) -> Iterator[Told]:
    """A run with the probes of this boot, in a thread of its own, as the command makes one."""
    told, stop, spaces = Told(), StopRequest(), Namespaces()
    watch.session.drain()
    watch.session.losses()
    hops = HopBuilder(spaces, Processes(), watch.kernel.drop_reasons(), watch.kernel.symbols.containing)
    with kube, live_resolver.watching(spaces, watch.session.extensions, False) as (rules, _):
        watch.session.set_filter(kube.filter())
        run = Run(
            LiveSource(watch.session, kube), PacketAssembler(hops, tracking=tracking(), rules=rules), told, RunLimits(), kube
        )
        thread = threading.Thread(target=run.trace, args=(stop,))
        thread.start()
        try:
            yield told
        finally:
            stop.request()
            thread.join()
            kube.detach()
            watch.session.set_filter(NOTHING)
            watch.lost += sum(told.lost_by_probe.values())


def until(true: Callable[[], object], told: Told, what: str) -> None:
    waiting.until(true, lambda: f"{what}: {told.notes}", pause=0.05)


def request(told: Told) -> Packet:
    """One request to the NodePort; the SYN as the run printed it."""
    reply = traffic.http_get()
    assert reply.outcome == "answered"
    told.asked.add(reply.sport)
    found: list[Packet] = []

    def came() -> bool:
        found[:] = [p for p in told.packets if p.tcp_flags == "SYN" and p.endpoints.sport == reply.sport]
        return bool(found)

    until(came, told, "no packet")
    return found[0]


def ends(packet: Packet) -> tuple[str, str]:
    """Whose the destination is, and where the DNAT led."""
    led = next(h.owner.target for h in packet.hops if h.nat and h.nat.kind == "DNAT" and h.owner)
    return packet.dst_owner.text if packet.dst_owner else "", led


def named(told: Told) -> bool:
    dst, led = ends(request(told))
    return dst == f"{SERVICE}, NodePort 30285" and led.startswith("pod default/http-proxy-")


def cut_short(told: Told) -> list[Packet]:
    """Packets of the requests that are incomplete though nothing was lost. What earlier tests have left under way, a segment
    that is sent again for one, began before this run and is incomplete in it."""
    mine = [p for p in told.packets if (p.flow.orig.sport if p.flow else p.endpoints.sport) in told.asked]
    assert len(mine) >= len(told.asked) > 0
    return [] if told.lost_by_probe else [p for p in mine if not p.complete]


def rename(server: ApiServer, old: str, new: str) -> None:
    """The pods are replaced by others at the same addresses."""
    for body in server.objects:
        name = body["metadata"]["name"]
        if body["kind"] == "Pod" and name.startswith(old):
            server.remove("Pod", "default", name)
            server.put(body | {"metadata": body["metadata"] | {"name": name.replace(old, new)}})
        elif body["kind"] == "EndpointSlice" and body["endpoints"]:
            server.put(body | {"endpoints": json.loads(json.dumps(body["endpoints"]).replace(f'"{old}-', f'"{new}-'))})


def test_names_come_and_go_with_the_api_and_tracing_goes_on(watch: Watch, server: ApiServer, tmp_path: Path) -> None:
    server.die()
    kube = OwnerResolver(
        ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), Selectors(), Filter(ports=(traffic.NODEPORT_HTTP,))
    )
    with running(watch, kube) as told:
        dst, led = ends(request(told))
        assert not dst.startswith("Service") and not led, "the API is away, the rules' comments are all there is"
        until(lambda: told.notes, told, "it was not said that the API is away")
        assert "does not answer (Connection refused): names may be old or missing." in told.notes[0]

        server.start()
        until(lambda: named(told), told, "names did not come")
        until(lambda: told.notes[1:], told, "it was not said that the API is back")
        assert told.notes[1] == "The Kubernetes API answers again."

        server.die()
        until(lambda: told.notes[2:], told, "it was not said that the API went away")
        assert "does not answer" in told.notes[2]
        assert named(told), "what was known stays known"
        rename(server, "http-proxy", "x")
        server.start()
        until(lambda: ends(request(told))[1].startswith("pod default/x-"), told, "nothing new")
        until(lambda: told.notes[3:], told, "it was not said that the API is back")

        said = len(told.notes)
        server.break_off()
        rename(server, "x", "y")
        server.forget()
        until(lambda: ends(request(told))[1].startswith("pod default/y-"), told, "410 Gone, and nothing was listed anew")
        assert not [n for n in told.notes[said:] if "answered 410" in n], "that is nothing to tell"

        server.refuse["Service"] = 403
        server.forget()
        server.break_off()
        forbidden = "The Kubernetes API does not let this account list services (403): services may go unnamed."
        until(lambda: forbidden in told.notes, told, "403 was not said")
        assert request(told).outcome == "delivered", "tracing goes on"
        server.refuse.clear()
        until(lambda: told.notes[-1] == "The Kubernetes API answers again.", told, "the account is let in again")
        assert ends(request(told))[0] == f"{SERVICE}, NodePort 30285"
    assert not cut_short(told)


def test_the_filter_follows_the_endpoints(watch: Watch, server: ApiServer, tmp_path: Path) -> None:
    """--service: who asks a pod directly is seen while it is an endpoint, and not before or after."""
    words = Selectors(services=("default/http-proxy",))
    kube = OwnerResolver(ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), words, Filter())
    (slice_,) = [o for o in server.objects if o["kind"] == "EndpointSlice" and o["metadata"]["name"].startswith("http-proxy")]
    pod = topology.PODS[1].addr4

    def direct() -> bool:
        """Whether a request to the pod itself is printed. One to the NodePort, which always is, shows when all was."""
        reply = traffic.http_get(pod, 8080)
        assert reply.outcome == "answered"
        request(told)
        return any(p.endpoints.sport == reply.sport for p in told.packets)

    def put(addresses: set[str]) -> None:
        kept = [e for e in slice_["endpoints"] if set(e["addresses"]) & addresses]
        before = kube.current
        server.put(slice_ | {"endpoints": kept})
        until(lambda: kube.current != before, told, "the filter did not change")
        time.sleep(0.3)  # until it is in the kernel

    with running(watch, kube) as told:
        assert direct()
        put({p.addr4 for p in topology.PODS} - {pod})
        assert not direct(), "it is no endpoint any more"
        put({p.addr4 for p in topology.PODS})
        assert direct()
        before = kube.current
        server.die()
        until(lambda: told.notes, told, "it was not said that the API went away")
        assert kube.current == before and direct(), "the filter stays as it was"
    assert not cut_short(told)


def test_the_filter_follows_while_packets_wait_to_be_explained(watch: Watch, server: ApiServer, tmp_path: Path) -> None:
    """An endpoint comes while the run has no time for it: who asks it meanwhile is seen, and it is said since when."""
    kube = OwnerResolver(
        ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), Selectors(services=("default/http-proxy",)), Filter()
    )
    (slice_,) = [o for o in server.objects if o["kind"] == "EndpointSlice" and o["metadata"]["name"].startswith("http-proxy")]
    pod = topology.PODS[1].addr4
    server.put(slice_ | {"endpoints": [e for e in slice_["endpoints"] if pod not in e["addresses"]]})
    with running(watch, kube) as told:
        request(told)
        told.goes_on.clear()
        try:
            before = len(told.packets)
            assert traffic.http_get().outcome == "answered"
            until(lambda: len(told.packets) > before, told, "nothing is being explained")
            unseen = traffic.http_get(pod, 8080)
            server.put(slice_)
            until(lambda: pod in {str(h.network_address) for h in kube.newest.hosts}, told, "the probes were not told")
            reply = traffic.http_get(pod, 8080)
        finally:
            told.goes_on.set()
        assert (unseen.outcome, reply.outcome) == ("answered", "answered")
        until(lambda: any(p.endpoints.sport == reply.sport for p in told.packets), told, "what came meanwhile was not traced")
        assert not any(p.endpoints.sport == unseen.sport for p in told.packets)
        until(lambda: any(f"new filter: with {pod}" in note for note in told.notes), told, "it was not said since when")
