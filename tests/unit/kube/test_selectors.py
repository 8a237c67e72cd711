# SPDX-License-Identifier: Apache-2.0
"""--service, --pod, --node-port and --host-port: their addresses and ports, which are kept current while tracing."""

from __future__ import annotations

import errno
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api_server import ApiServer
from tests.support.nodes import node
from tests.support.waiting import until
from tracer.errors import BadOption, NoObjects, NoSuchObject
from tracer.events.record import EventArray
from tracer.kube import selectors
from tracer.kube.api_client import ApiClient
from tracer.kube.catalog import ClusterView
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selected_ends import NOBODY, kernel_filter, matches
from tracer.kube.selectors import Selectors, ends
from tracer.kube.store import ObjectStore
from tracer.kube.watch import ObjectWatch
from tracer.model.endpoints import Endpoints
from tracer.model.filter import Filter, parse_host
from tracer.model.loss import Loss
from tracer.model.namespace_name import HOST
from tracer.model.packet import Flow, Packet
from tracer.pipeline.live_source import LiveSource
from tracer.pipeline.owner_stage import OwnerStage
from tracer.pipeline.run import Run
from tracer.render.text import TextOutput

OBJECTS = node("1.36.2-iptables-nft", "S2-three").objects


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterView:
    return node("1.36.2-iptables-nft", "S2-three").cluster_view(tmp_path)


def addresses(found: Filter) -> set[str]:
    return {str(h.network_address) for h in found.hosts}


def test_a_service_is_its_addresses_its_node_port_and_its_endpoints(cluster: ClusterView) -> None:
    found = ends(Selectors(services=("default/http-proxy",)), cluster)
    pods = {(f"10.244.0.1{n}", 8080, "tcp") for n in (1, 2, 3)}
    assert found == {("172.30.253.123", 8080, "tcp"), ("", 30285, "tcp"), *pods}
    to_kernel = kernel_filter(Filter(family=4), found, cluster)
    assert (to_kernel.ports, to_kernel.family) == ((8080, 30285), 4)
    assert addresses(to_kernel) >= {"172.30.253.123", "192.168.56.10", "10.244.0.11", "10.244.0.12", "10.244.0.13"}


def test_a_port_of_a_service_by_name_or_number(cluster: ClusterView) -> None:
    for word in ("default/kubernetes:https", "kubernetes:443", "kubernetes"):
        assert ("172.30.0.1", 443, "tcp") in ends(Selectors(services=(word,)), cluster)
    with pytest.raises(NoSuchObject, match=r"^Service default/kubernetes has no port http \(it has: https\)\.$"):
        selectors.check(Selectors(services=("default/kubernetes:http",)), cluster)


def test_a_pod_is_its_address_on_any_port(cluster: ClusterView) -> None:
    found = ends(Selectors(pods=("default/http-proxy-b",)), cluster)
    assert found == {("10.244.0.12", 0, "")}
    assert kernel_filter(Filter(), found, cluster) == Filter(hosts=(parse_host("10.244.0.12"),))


def test_a_host_port_is_known_without_the_api(tmp_path: Path) -> None:
    known = node("1.36.2-iptables-nft", "S5").cluster_view(tmp_path, with_api=False)
    assert ends(Selectors(host_ports=(3306,)), known) == {("", 3306, ""), ("10.224.0.224", 3306, "tcp")}
    selectors.check(Selectors(host_ports=(3306,)), known)


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        (Selectors(services=("shop/http-proxy",)), "There is no Service shop/http-proxy (there is default/http-proxy)."),
        (Selectors(services=("shop/cart",)), "There is no Service shop/cart."),
        (Selectors(pods=("shop/web",)), "There is no pod shop/web on this node or behind a Service."),
        (Selectors(node_ports=(31000,)), "No Service has NodePort 31000."),
        (Selectors(host_ports=(81,)), "No pod of this node has hostPort 81."),
    ],
)
def test_a_missing_object_gives_one_sentence(selection: Selectors, sentence: str, cluster: ClusterView) -> None:
    with pytest.raises(NoSuchObject) as e:
        selectors.check(selection, cluster)
    assert (str(e.value), e.value.status) == (sentence, 9)


def test_an_object_without_addresses_lets_nothing_pass(cluster: ClusterView) -> None:
    assert kernel_filter(Filter(), frozenset(), cluster).hosts == (NOBODY,)


def test_more_hosts_than_the_kernel_takes_are_left_to_user_space() -> None:
    many = frozenset((f"10.1.{n >> 8}.{n & 255}", 80, "tcp") for n in range(300))
    assert kernel_filter(Filter(), many, ClusterView()) == Filter(ports=(80,))


def packet(src: tuple[str, int], dst: tuple[str, int], orig: tuple[str, int] | None = None) -> Packet:
    found = Packet(1, 0, HOST, "eth0", "IPv4", "TCP", Endpoints(*src, *dst))
    if orig:
        before, after = Endpoints(*src, *orig), Endpoints(*dst, *src)
        found = replace(found, flow=Flow(before, after, "NEW", False, 0))
    return found


def test_pairs_are_compared_again_in_user_space(cluster: ClusterView) -> None:
    found = ends(Selectors(services=("default/http-proxy",)), cluster)
    client = ("192.168.56.1", 40000)
    for dst in (("192.168.56.10", 30285), ("172.30.253.123", 8080), ("10.244.0.12", 8080)):
        assert matches(packet(client, dst), found, cluster), dst
        assert matches(packet(dst, client), found, cluster), dst
    for dst in (("192.168.56.10", 8080), ("172.30.253.123", 30285), ("10.244.0.12", 30285), ("192.168.56.99", 30285)):
        assert not matches(packet(client, dst), found, cluster), dst
    assert matches(packet(client, ("10.9.9.9", 1), orig=("192.168.56.10", 30285)), found, cluster), "by its connection"


class Session:
    """Replaces the kernel side."""

    def __init__(self) -> None:
        self.filters: list[Filter] = []

    def set_filter(self, found: Filter) -> None:
        self.filters.append(found)

    def events(self) -> Any:
        return np.zeros(0)

    def losses(self) -> list[Any]:
        return []

    def poll_losses(self) -> None: ...


class EmptyAssembler:
    """An assembler that makes no packets."""

    events = unaddressed = open = 0
    is_waiting_for_rules = False
    is_uniform = True

    def feed(self, batch: EventArray) -> None: ...

    def add_losses(self, losses: Sequence[Loss], now: int) -> None: ...

    def horizon(self, now: int) -> int:
        return now

    def chunks(self, now: int | None = None) -> Iterator[list[Packet]]:
        return iter(())


def test_the_filter_follows_the_endpoints_while_tracing(tmp_path: Path, server: ApiServer) -> None:
    source = ObjectSource(kubeconfig=server.kubeconfig(tmp_path))
    session = Session()
    with (
        open(tmp_path / "err", "w") as err,
        OwnerResolver(source, Selectors(services=("default/http-proxy",)), Filter()) as kube,
    ):
        assert "10.244.0.12" in addresses(kube.filter())
        events = LiveSource(session, kube)  # type: ignore[arg-type]
        run = Run(events, EmptyAssembler(), [OwnerStage(kube, events)], TextOutput(err=err))

        def read_until(condition: Callable[[], object]) -> None:
            def read_and_check() -> bool:
                run.feed(events.read())
                return bool(condition())

            until(read_and_check)

        slices = next(o for o in OBJECTS if o["kind"] == "EndpointSlice" and o["metadata"]["name"].startswith("http-proxy"))
        changed = json.loads(json.dumps(slices))
        changed["endpoints"][1]["addresses"] = ["10.244.0.99"]
        server.put(changed)
        read_until(lambda: session.filters and "10.244.0.99" in addresses(session.filters[-1]))
        assert "10.244.0.12" not in addresses(session.filters[-1])
        server.remove("Service", "default", "http-proxy")
        read_until(lambda: session.filters[-1].hosts == (NOBODY,))
        time.sleep(0.05)
        run.feed(events.read())
    printed = (tmp_path / "err").read_text().splitlines()
    assert [line for line in printed if "new filter" not in line] == ["There is no Service default/http-proxy."]


def test_an_unknown_service(tmp_path: Path, server: ApiServer) -> None:
    kube = OwnerResolver(ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), Selectors(services=("shop/cart",)), Filter())
    with pytest.raises(NoSuchObject, match="There is no Service shop/cart"), kube:
        pass


def wait_for_trouble(watch: ObjectWatch, seconds: float) -> bool:
    """Replaces ObjectWatch.wait: waits until the watch has found that no server answers."""
    until(lambda: watch.troubled)
    return False


def must_not_wait(watch: ObjectWatch, seconds: float) -> bool:
    raise AssertionError("no selector needs the API")


def test_an_api_that_is_away(tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ObjectSource(kubeconfig=server.kubeconfig(tmp_path))
    server.die()
    monkeypatch.setattr(ObjectWatch, "wait", wait_for_trouble)
    with pytest.raises(NoObjects, match=r"does not answer \(Connection refused\)"):
        OwnerResolver(source, Selectors(services=("shop/cart",)), Filter()).start()
    monkeypatch.setattr(ObjectWatch, "wait", must_not_wait)
    with OwnerResolver(source, Selectors(node_ports=(30285,)), Filter()) as kube:
        assert kube.filter().ports == (30285,), "a port needs no object"


def test_a_slow_api_delays_only_selectors_with_names(
    tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answering.clear()
    source = ObjectSource(kubeconfig=server.kubeconfig(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(ObjectWatch, "wait", must_not_wait)
        with OwnerResolver(source, Selectors(), Filter()):
            pass
    monkeypatch.setattr("tracer.kube.owner_resolver.PATIENCE", 0.1)
    with pytest.raises(NoObjects, match="has not answered within"):
        OwnerResolver(source, Selectors(services=("default/http-proxy",)), Filter()).start()


@pytest.mark.parametrize("trouble", ["refused", "401"])
def test_an_api_that_refuses_is_not_waited_for(
    tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Its answer is the reason that is shown, and the run does not wait until PATIENCE ends."""
    monkeypatch.setattr(ObjectWatch.__init__, "__defaults__", (0.01,))  # the pause between attempts
    source = ObjectSource(kubeconfig=server.kubeconfig(tmp_path, "stale"))
    if trouble == "refused":
        server.die()
    server.token = "valid"
    reason = {"refused": "does not answer (Connection refused)", "401": "does not know this account (401"}[trouble]
    monkeypatch.setattr("tracer.kube.owner_resolver.PATIENCE", 3600.0)
    with OwnerResolver(source, Selectors(), Filter()) as kube:
        kube.settle()
        notes = " ".join(kube.notes())
        assert reason in notes and "has not answered" not in notes
    with pytest.raises(NoObjects, match=re.escape(reason)):
        OwnerResolver(source, Selectors(services=("default/http-proxy",)), Filter()).start()


def test_an_api_that_is_back_at_the_second_try(tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failure does not count: the API server may just be starting."""
    monkeypatch.setattr(ObjectWatch.__init__, "__defaults__", (0.01,))  # the pause between attempts
    first, get = threading.local(), ApiClient._get

    def fail_once(self: ApiClient, *args: Any) -> Any:
        if not getattr(first, "done", False):
            first.done = True
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return get(self, *args)

    monkeypatch.setattr(ApiClient, "_get", fail_once)
    with OwnerResolver(
        ObjectSource(kubeconfig=server.kubeconfig(tmp_path)), Selectors(services=("default/http-proxy",)), Filter()
    ) as kube:
        assert "172.30.253.123" in addresses(kube.filter())


def test_a_broken_kubeconfig_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("{")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with OwnerResolver(ObjectSource(), Selectors(), Filter()) as kube:
        assert kube.notes() == [f"The kubeconfig {tmp_path}/config is not valid YAML. Names come from rules only."]
    with pytest.raises(NoObjects, match="is not valid YAML"):
        OwnerResolver(ObjectSource(), Selectors(services=("a/b",)), Filter())
    with OwnerResolver(ObjectSource(none=True), Selectors(), Filter()) as kube:
        assert kube.notes() == []


def test_objects_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps({"kind": "List", "items": OBJECTS}))
    kube = OwnerResolver(ObjectSource(objects=str(path)), Selectors(services=("default/http-proxy",)), Filter())
    assert "172.30.253.123" in addresses(kube.filter())
    for text, sentence in (("{", "is not valid JSON"), ("{}", "has no Service")):
        path.write_text(text)
        with pytest.raises(NoObjects, match=sentence):
            OwnerResolver(ObjectSource(objects=str(path)), Selectors(), Filter())


def test_invalid_selectors_are_refused() -> None:
    for selection in ({"services": ("a/b/c",)}, {"pods": ("a/b:c",)}, {"node_ports": (0,)}, {"host_ports": (65536,)}):
        with pytest.raises(BadOption):
            Selectors(**selection)
    assert not Selectors() and Selectors(node_ports=(1,)) and not Selectors(node_ports=(1,)).need_names
    assert ObjectStore().version == 0
