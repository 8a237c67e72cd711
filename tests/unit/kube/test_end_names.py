# SPDX-License-Identifier: Apache-2.0
"""--src and --dst with names of objects: in the kernel's filter, in user space, in captures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tests.support.nodes import node
from tests.unit.kube.test_selectors import OBJECTS, packet
from tracer.capture.format.schema import Record
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.errors import BadOption, NoObjects, NoSuchObject
from tracer.kube import end_names, selected_ends, selectors
from tracer.kube.catalog import ClusterView
from tracer.kube.filter_renewal import FilterRenewal, RenewedFilter, sentence
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selected_ends import NOBODY, DirectedEnds, kernel_filter, matches_direction
from tracer.kube.selectors import Selectors, directed_ends
from tracer.kube.store import ObjectStore
from tracer.model.filter import MAX_HOSTS, Filter, parse_host
from tracer.selection.filter_options import FilterOptions

CLIENT, NODE_PORT = ("192.168.56.1", 40000), ("192.168.56.10", 30285)
POD_B, PODS = "10.244.0.12", ("10.244.0.11", "10.244.0.12", "10.244.0.13")


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterView:
    return node("1.36.2-iptables-nft", "S2-three").cluster_view(tmp_path)


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("pod/shop/cart-1", ("pods", "shop/cart-1")),
        ("po/cart-1", ("pods", "default/cart-1")),
        ("svc/shop/cart", ("services", "shop/cart")),
        ("service/shop/cart:http", ("services", "shop/cart:http")),
        ("deploy/shop/cart", ("workloads", "shop/deploy/cart")),
        ("sts/db", ("workloads", "default/sts/db")),
        ("ns/shop", ("namespaces", "shop")),
    ],
)
def test_a_name_selects_as_the_option_of_its_kind_does(text: str, selected: tuple[str, str]) -> None:
    assert end_names.is_name(text) and end_names.selector_of("--src", text) == selected
    (found,) = Selectors(sources=(text,)).of_direction("sources")
    assert found == replace(Selectors(), **{selected[0]: (selected[1],)})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["vm/shop/x", "pod/shop/x:80", "deploy/shop/x:80", "ns/a/b", "pod/", "pod/a/b/c", "pod/A/x"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match=r"--dst '.*' is no name: write pod/NS/NAME, svc/NS/NAME"):
        Selectors.of({"destinations": (text,)})


def test_addresses_are_no_names() -> None:
    assert not any(map(end_names.is_name, ("10.0.0.0/8", "fd00::/8", "abcd::/16", "10.1.2.3", "web")))
    options = {"sources": ("10.0.0.0/8",), "destinations": ("svc/shop/cart",)}
    assert Selectors.of(options) == Selectors(destinations=("svc/shop/cart",))
    assert FilterOptions.of(options) == FilterOptions(sources=("10.0.0.0/8",), destinations=())


def test_the_namespace_of_a_name_without_one() -> None:
    found = Selectors.of({"sources": ("pod/cart-1", "pod/a/b", "ns/c"), "namespaces": ("shop",)})
    assert found == Selectors(sources=("pod/shop/cart-1", "pod/a/b", "ns/c")), "--namespace is only where it is looked up"
    whole = Selectors.of({"sources": ("pod/a/b",), "namespaces": ("shop",)})
    assert whole == Selectors(sources=("pod/a/b",), namespaces=("shop",))


def test_the_kernel_gets_addresses_in_one_direction(cluster: ClusterView) -> None:
    asked = Selectors(sources=("pod/default/http-proxy-b",), destinations=("svc/default/http-proxy",))
    directed = directed_ends(asked, cluster)
    assert directed.sources == frozenset({(POD_B, 0, "")}) and directed.destinations
    found = kernel_filter(Filter(ports=(80,)), None, cluster, directed)
    assert (found.ports, found.hosts, found.sources) == ((80,), (), (parse_host(POD_B),)) and found.is_one_sided
    assert {*map(parse_host, ("172.30.253.123", "192.168.56.10", *PODS))} <= {*found.destinations}


def test_both_ends_of_another_option_and_a_direction(cluster: ClusterView) -> None:
    asked = Selectors(services=("default/http-proxy",), sources=("pod/default/http-proxy-b",))
    found = kernel_filter(Filter(), selectors.ends(asked, cluster), cluster, directed_ends(asked, cluster))
    assert found.hosts and found.ports == (8080, 30285) and found.sources == (parse_host(POD_B),) and not found.destinations
    reply = packet((POD_B, 8080), CLIENT)
    for one, is_selected in ((reply, True), (packet((POD_B, 9), CLIENT), False), (packet(CLIENT, (POD_B, 8080)), False)):
        wanted = selectors.ends(asked, cluster)
        assert selected_ends.selects(one, wanted, directed_ends(asked, cluster), cluster) is is_selected


def test_an_object_without_addresses_lets_nothing_pass(cluster: ClusterView) -> None:
    directed = DirectedEnds(sources=frozenset())
    assert kernel_filter(Filter(), None, cluster, directed).sources == (NOBODY,)
    assert not matches_direction(packet(CLIENT, NODE_PORT), directed, cluster)
    assert matches_direction(packet(CLIENT, NODE_PORT), DirectedEnds(), cluster)


def test_more_addresses_than_the_kernel_takes_are_left_to_user_space() -> None:
    many = frozenset((f"10.1.{n >> 8}.{n & 255}", 0, "") for n in range(MAX_HOSTS + 1))
    few = frozenset({("10.2.0.1", 0, "")})
    assert kernel_filter(Filter(), None, ClusterView(), DirectedEnds(many, few)) == Filter(
        destinations=(parse_host("10.2.0.1"),)
    )
    local = DirectedEnds(destinations=frozenset({("", 30285, "tcp")}))
    assert kernel_filter(Filter(), None, ClusterView(), local) == Filter(), "this node's addresses are not known"


def test_a_destination_before_and_after_translation(cluster: ClusterView) -> None:
    directed = directed_ends(Selectors(destinations=("svc/default/http-proxy",)), cluster)
    assert matches_direction(packet(CLIENT, NODE_PORT), directed, cluster)
    assert matches_direction(packet(CLIENT, (POD_B, 8080)), directed, cluster)
    assert matches_direction(packet(CLIENT, ("10.9.9.9", 1), orig=NODE_PORT), directed, cluster), "by its connection"
    for wrong in (packet(NODE_PORT, CLIENT), packet(CLIENT, (POD_B, 30285)), packet((POD_B, 8080), CLIENT)):
        assert not matches_direction(wrong, directed, cluster)


@pytest.mark.parametrize(
    ("words", "sentence_of_error"),
    [
        (Selectors(sources=("pod/shop/web",)), "There is no pod shop/web on this node or behind a Service."),
        (
            Selectors(destinations=("svc/shop/http-proxy",)),
            "There is no Service shop/http-proxy (there is default/http-proxy).",
        ),
        (Selectors(destinations=("deploy/shop/x",)), "There is no pod of shop/deploy/x on this node."),
        (Selectors(sources=("ns/void",)), "There is no Service in namespace void, and no pod of it on this node."),
    ],
)
def test_an_unknown_name_gives_one_sentence(words: Selectors, sentence_of_error: str, cluster: ClusterView) -> None:
    with pytest.raises(NoSuchObject) as e:
        selectors.check(words, cluster)
    assert (str(e.value), e.value.status) == (sentence_of_error, 9)


def test_names_need_objects_and_go_with_ports(tmp_path: Path) -> None:
    words = Selectors(sources=("pod/default/http-proxy-b",))
    with pytest.raises(BadOption, match="names in --src and --dst need Kubernetes' objects: leave --no-kube out"):
        OwnerResolver(ObjectSource(none=True), words, Filter())
    known = node("1.36.2-iptables-nft", "S2-three").cluster_view(tmp_path)
    kube = OwnerResolver(ObjectSource(none=True, replayed=True, known=lambda: known), words, Filter(ports=(8080,)))
    assert kube.filter() == Filter(ports=(8080,), sources=(parse_host(POD_B),)) and kube.is_one_sided
    assert kube.wants(packet((POD_B, 8080), CLIENT)) and not kube.wants(packet(CLIENT, (POD_B, 8080)))


def renewed(known: ClusterView, change: Callable[[ObjectStore], None]) -> list[RenewedFilter]:
    """The filters of --src pod/default/http-proxy-b before and after a change."""
    renewal = FilterRenewal(Selectors(sources=("pod/default/http-proxy-b",)), Filter(), known)
    written: list[Filter] = []
    renewal.attach(written.append)
    known.store.load(OBJECTS)
    change(known.store)
    found = renewal.read()
    assert [each.filter for each in found] == written
    return found


def test_the_filter_follows_the_pod() -> None:
    def move(store: ObjectStore) -> None:
        (body,) = [o for o in OBJECTS if o["kind"] == "Pod" and o["metadata"]["name"] == "http-proxy-b"]
        status = {**body["status"], "podIP": "10.244.0.77", "podIPs": [{"ip": "10.244.0.77"}]}
        store.apply("Pod", {**body, "status": status})

    before, after = renewed(ClusterView(ObjectStore()), move)[-2:]
    assert before.filter.sources == (parse_host(POD_B),) and after.filter.sources == (parse_host("10.244.0.77"),)
    assert f"with source 10.244.0.77, without source {POD_B}." in sentence(before.filter, after)


STEPS = [
    RenewedFilter(since, frozenset(), Filter(sources=(parse_host(source),)), DirectedEnds(sources=frozenset({(source, 0, "")})))
    for since, source in ((0, "192.168.56.1"), (2_000_000, "192.168.56.77"))
]
"""The pod of the selector had the address of the client of captures.request, and gets another one."""


def directed_capture(directory: Path, **more: Any) -> captures.Printed:
    batches: captures.Batches = [(captures.request(n, n * 1_000_000), []) for n in (1, 3)]
    return captures.capture(
        directory / "a.k8st", batches, selectors=Selectors(sources=("pod/shop/client",)), renewals=STEPS, **more
    )


def test_a_capture_has_the_renewals_of_a_direction(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    made = directed_capture(tmp_path)
    assert made.text["text"].count("  SYN  60 B") == 1, "the second packet came when the pod had another address"
    status, now, _ = run("-r", made.path)
    assert (status, now) == (0, made.text["text"])
    with CaptureReader(str(made.path)) as capture:
        bodies = [body for _, kind, _, body in capture.records() if kind == Record.FILTER]
    assert [body[4:] for body in bodies] == [
        [["sources", [["192.168.56.1", 0, ""]], ["192.168.56.1/32"]]],
        [["sources", [["192.168.56.77", 0, ""]], ["192.168.56.77/32"]]],
    ]


@pytest.mark.parametrize(
    "direction", [["hosts", [], []], ["sources", [], ["10.0.0.1/99"]], ["sources", [["a", 1]], []], ["sources"], 7]
)
def test_an_invalid_direction_in_a_capture_is_damage(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch, direction: Any
) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    add_filter = "tracer.capture.record.buffer.RecordBuffer.add_filter"
    monkeypatch.setattr(add_filter, lambda b, _: b.add_record(Record.FILTER, "", [5, [], [], [], direction]))
    status, _, err = run("-r", directed_capture(tmp_path).path)
    assert status == 23 and "could not be read" in err


def test_a_capture_is_read_by_name(tmp_path: Path, run: Any) -> None:
    path = captures.capture(tmp_path / "a.k8st").path
    service = "svc/default/http-proxy"
    to, by, both = (
        run("-r", path, *words)[1] for words in (("--dst", service), ("--src", service), ("--service", service[4:]))
    )
    assert to.count("  SYN  ") and to.count("  SYN  ") == both.count("  SYN  ") and "  SYN  " not in by


def test_a_name_that_a_capture_does_not_have(tmp_path: Path, run: Any) -> None:
    path = captures.capture(tmp_path / "a.k8st").path
    for words in (("--dst", "svc/shop/http-proxy"), ("--service", "shop/http-proxy")):
        status, _, err = run("-r", path, *words)
        assert status == 9 and "There is no Service shop/http-proxy (there is default/http-proxy)." in err
    path = captures.capture(tmp_path / "b.k8st", objects=()).path
    assert run("-r", path, "--node-port", "30999")[0] == 0, "a number needs no objects"
    status, _, err = run("-r", path, "--dst", "svc/shop/http-proxy")
    assert status == NoObjects.status and "need Kubernetes' objects, and the capture has none." in err
