# SPDX-License-Identifier: Apache-2.0
"""An API server that is absent, starts, dies, comes back, forgets and refuses while packets are traced on a real kernel.

The server speaks list and watch over HTTP (tests/support/api_server.py), with objects recorded on a real cluster.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path

from scenes import topology, traffic
from tests.kernel.watching import NOTHING, Watch
from tests.support import waiting
from tests.support.api_server import ApiServer
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.filter import Filter
from tracer.model.hop import RewriteHop
from tracer.model.packet import Packet
from tracer.pipeline import builder
from tracer.pipeline.builder import RunOptions
from tracer.pipeline.live_environment import LiveEnvironment
from tracer.pipeline.shutdown import StopRequest
from tracer.render.text import TextOutput

SERVICE = "Service default/http-proxy"


class KeptOutput(TextOutput):
    """Keeps the output of a run."""

    def __init__(self) -> None:
        super().__init__(StringIO(), StringIO())
        self.packets: list[Packet] = []
        self.notes: list[str] = []
        self.requested: set[int] = set()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def packet(self, packet: Packet) -> None:
        super().packet(packet)
        self.packets.append(packet)
        self.goes_on.wait()

    def note(self, text: str) -> None:
        self.notes.append(text)


@contextmanager
def running(watch: Watch, kube: OwnerResolver) -> Iterator[KeptOutput]:
    """A run with the probes of this boot, in its own thread, built as the command builds it."""
    output, stop, environment = KeptOutput(), StopRequest(), LiveEnvironment()
    watch.session.drain()
    watch.session.losses()
    environment.attach(watch.kernel, watch.session)
    with kube, ExitStack() as stack:
        watch.session.set_filter(kube.filter())
        run = builder.build(environment, kube, output, RunOptions(), stack).run
        thread = threading.Thread(target=run.run, args=(stop,))
        thread.start()
        try:
            yield output
        finally:
            stop.request()
            thread.join()
            watch.session.set_filter(NOTHING)
            watch.lost += sum(output.lost_by_probe.values())


def until(done: Callable[[], object], output: KeptOutput, what: str) -> None:
    waiting.until(done, lambda: f"{what}: {output.notes}", pause=0.05)


def request(output: KeptOutput) -> Packet:
    """Makes one request to the NodePort; returns its SYN as the run printed it."""
    reply = traffic.http_get()
    assert reply.outcome == "answered"
    output.requested.add(reply.sport)
    found: list[Packet] = []

    def printed() -> bool:
        found[:] = [p for p in output.packets if p.tcp_flags == "SYN" and p.endpoints.sport == reply.sport]
        return bool(found)

    until(printed, output, "no packet")
    return found[0]


def ends(packet: Packet) -> tuple[str, str]:
    """The owner of the destination, and the target of the DNAT."""
    target = next(h.owner.target for h in packet.hops if isinstance(h, RewriteHop) and h.nat.kind == "DNAT" and h.owner)
    return packet.dst_owner.text if packet.dst_owner else "", target


def is_named(output: KeptOutput) -> bool:
    dst, target = ends(request(output))
    return dst == f"{SERVICE}, NodePort 30285" and target.startswith("pod default/http-proxy-")


def wrongly_incomplete(output: KeptOutput) -> list[Packet]:
    """Packets of the requests that are incomplete though nothing was lost. Packets of earlier tests, for example retransmitted
    segments, began before this run and are incomplete in it, so they do not count."""
    mine = [p for p in output.packets if (p.flow.orig.sport if p.flow else p.endpoints.sport) in output.requested]
    assert len(mine) >= len(output.requested) > 0
    return [] if output.lost_by_probe else [p for p in mine if not p.complete]


def rename(server: ApiServer, old: str, new: str) -> None:
    """Replaces the pods by others at the same addresses."""
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
    with running(watch, kube) as output:
        dst, target = ends(request(output))
        assert not dst.startswith("Service") and not target, "while the API is absent, names come only from the rules' comments"
        until(lambda: output.notes, output, "no note that the API is absent")
        assert "does not answer (Connection refused): names may be old or missing." in output.notes[0]

        server.start()
        until(lambda: is_named(output), output, "names did not come")
        until(lambda: output.notes[1:], output, "no note that the API is back")
        assert output.notes[1] == "The Kubernetes API answers again."

        server.die()
        until(lambda: output.notes[2:], output, "no note that the API went away")
        assert "does not answer" in output.notes[2]
        assert is_named(output), "known names must stay known"
        rename(server, "http-proxy", "x")
        server.start()
        until(lambda: ends(request(output))[1].startswith("pod default/x-"), output, "no new names")
        until(lambda: output.notes[3:], output, "no note that the API is back")

        noted = len(output.notes)
        server.break_off()
        rename(server, "x", "y")
        server.forget()
        until(lambda: ends(request(output))[1].startswith("pod default/y-"), output, "410 Gone, and no new list was made")
        assert not [n for n in output.notes[noted:] if "answered 410" in n], "a 410 must not give a note"

        server.refuse["Service"] = 403
        server.forget()
        server.break_off()
        forbidden = "The Kubernetes API does not let this account list services (403): services may go unnamed."
        until(lambda: forbidden in output.notes, output, "no note of 403")
        assert request(output).outcome == "delivered", "tracing must go on"
        server.refuse.clear()
        until(
            lambda: output.notes[-1] == "The Kubernetes API answers again.", output, "no note that the account has access again"
        )
        assert ends(request(output))[0] == f"{SERVICE}, NodePort 30285"
    assert not wrongly_incomplete(output)


def test_the_filter_follows_the_endpoints(watch: Watch, server: ApiServer, tmp_path: Path) -> None:
    """--service: a request to a pod directly is seen while the pod is an endpoint, and not before or after."""
    selectors = Selectors(services=("default/http-proxy",))
    kube = OwnerResolver(ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), selectors, Filter())
    (slice_,) = [o for o in server.objects if o["kind"] == "EndpointSlice" and o["metadata"]["name"].startswith("http-proxy")]
    pod = topology.PODS[1].addr4

    def direct() -> bool:
        """Whether a request to the pod itself is printed. One to the NodePort always is, and shows when all was."""
        reply = traffic.http_get(pod, 8080)
        assert reply.outcome == "answered"
        request(output)
        return any(p.endpoints.sport == reply.sport for p in output.packets)

    def put(addresses: set[str]) -> None:
        kept = [e for e in slice_["endpoints"] if set(e["addresses"]) & addresses]
        before = kube.current
        server.put(slice_ | {"endpoints": kept})
        until(lambda: kube.current != before, output, "the filter did not change")
        time.sleep(0.3)  # until it is in the kernel

    with running(watch, kube) as output:
        assert direct()
        put({p.addr4 for p in topology.PODS} - {pod})
        assert not direct(), "the pod is no longer an endpoint"
        put({p.addr4 for p in topology.PODS})
        assert direct()
        before = kube.current
        server.die()
        until(lambda: output.notes, output, "no note that the API went away")
        assert kube.current == before and direct(), "the filter must stay as it was"
    assert not wrongly_incomplete(output)


def test_the_filter_follows_while_packets_wait_to_be_explained(watch: Watch, server: ApiServer, tmp_path: Path) -> None:
    """An endpoint comes while the run is busy: a request to it is seen, and a note gives the time from which it is traced."""
    kube = OwnerResolver(
        ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), Selectors(services=("default/http-proxy",)), Filter()
    )
    (slice_,) = [o for o in server.objects if o["kind"] == "EndpointSlice" and o["metadata"]["name"].startswith("http-proxy")]
    pod = topology.PODS[1].addr4
    server.put(slice_ | {"endpoints": [e for e in slice_["endpoints"] if pod not in e["addresses"]]})
    with running(watch, kube) as output:
        request(output)
        output.goes_on.clear()
        try:
            before = len(output.packets)
            assert traffic.http_get().outcome == "answered"
            until(lambda: len(output.packets) > before, output, "no packet is being explained")
            unseen = traffic.http_get(pod, 8080)
            server.put(slice_)
            until(
                lambda: pod in {str(h.network_address) for h in kube.newest.hosts},
                output,
                "the probes did not get the new filter",
            )
            reply = traffic.http_get(pod, 8080)
        finally:
            output.goes_on.set()
        assert (unseen.outcome, reply.outcome) == ("answered", "answered")
        until(
            lambda: any(p.endpoints.sport == reply.sport for p in output.packets),
            output,
            "the request made meanwhile was not traced",
        )
        assert not any(p.endpoints.sport == unseen.sport for p in output.packets)
        until(
            lambda: any(f"new filter: with {pod}" in note for note in output.notes),
            output,
            "no note from when the pod is traced",
        )
