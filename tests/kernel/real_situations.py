# SPDX-License-Identifier: Apache-2.0
"""Situations of a node with the real kube-proxy: changed objects, restarts, an API that is not reachable, another mode before,
--cleanup, and the incidents in which kube-proxy takes part.
"""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scenes import servers
from scenes.topology import CLIENT
from tests.kernel import audit_nodes, real_cluster
from tests.kernel.audit_nodes import NODE, PODS
from tests.kernel.real_cluster import ADDRESSES, CONTAINER, HOST_PORT, HOSTED, LOCAL, LONELY, NODE_PORTS, REFUSED, WEB, Request
from tests.kernel.real_runs import Judge, Totals
from tests.kernel.watching import Watch
from tests.support import real_proxy
from tests.support.api_server import ApiServer
from tests.support.real_proxy import KubeProxy, Mode, until
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.kube.store import ObjectStore
from tracer.model.filter import Filter

METRICS_PORT = 10249
_WRITTEN = re.compile(r"^kubeproxy_sync_proxy_rules_last_timestamp_seconds(?:\{[^}]*\})? [1-9]", re.M)
OTHER = {"legacy": "nft", "nft": "legacy"}


@dataclass
class Place:
    """The environment of the situations. watch: the probes, None = requests are not traced. proc: a directory like /proc.
    with_explain: each request is compared with `explain`."""

    api: ApiServer
    folder: Path
    watch: Watch | None
    proc: Path
    totals: Totals
    with_explain: bool

    @contextmanager
    def judged(self) -> Iterator[tuple[Judge, OwnerResolver]]:
        """Reads the objects with the tracer's own client, and makes a judge that uses them."""
        source = ObjectSource(kubeconfig=self.api.kubeconfig(self.folder))
        if self.watch is None:
            local = frozenset({NODE, "10.244.0.1", "10.244.0.254", "127.0.0.1"})
            source = replace(source, known=lambda: ClusterView(ObjectStore(), CniCache((self.folder,)), local))
        with OwnerResolver(source, Selectors(), Filter()) as kube:
            kube.settle()
            timeout = 4.0 if self.watch else 0.7
            yield Judge(kube.cluster, self.watch, self.proc, self.with_explain, timeout, self.totals), kube

    def proxy(self, mode: Mode, node: str = "node-1") -> KubeProxy:
        return KubeProxy(mode, self.api.kubeconfig(self.folder), self.folder, node)


def every(place: Place, mode: Mode) -> None:
    """All situations of one mode, on a node without any rule."""
    fresh(place, mode)
    old = before(place, mode)
    proxy = place.proxy(mode)
    started(place, proxy)
    try:
        with place.judged() as (judge, kube):
            after(place, judge, proxy, old)
            host_port(place, mode.back)
            judge.healthy(f"{mode.name} fresh", real_cluster.requests())
            host_port(place, mode.back, remove=True)
            host_port(place, OTHER[mode.back])
            judge.healthy(
                f"{mode.name}, portmap in {OTHER[mode.back]}", [a for a in real_cluster.requests() if a.label == HOSTED]
            )
            host_port(place, OTHER[mode.back], remove=True)
            changed(place, proxy, judge, kube)
            incidents(place, proxy, judge)
    finally:
        proxy.stop()
    assert proxy.cleanup() == 0, proxy.log_end()
    cleaned(place, mode)


def fresh(place: Place, mode: Mode) -> None:
    """Removes all rules, restores the initial objects, and writes the rules of a kubelet of that version."""
    real_cluster.clear()
    initial_objects = real_cluster.all_objects()
    for body in place.api.objects:
        place.api.remove(body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"])
    for body in initial_objects:
        place.api.put(body)
    if mode.version.startswith("1.20"):
        real_cluster.kubelet(mode.back)


def started(place: Place, proxy: KubeProxy) -> None:
    """Starts kube-proxy and waits until it has written its rules."""
    proxy.start()
    if proxy.process and place.watch is None:
        # The tracer must find its process in the directory like /proc, too.
        (place.proc / str(proxy.process.pid)).symlink_to(f"/proc/{proxy.process.pid}")
    until(has_written, proxy, "it does not report that it has written its rules")
    until(lambda: str(NODE_PORTS[WEB]) in rules(proxy.mode), proxy, "no rules")


def has_written() -> bool:
    """Whether the running kube-proxy has written its rules once since its start."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=2) as answer:
            return bool(_WRITTEN.search(answer.read().decode()))
    except OSError:
        return False


def rules(mode: Mode) -> str:
    return real_cluster.in_force("native" if mode.proxy == "nftables" else mode.back)


def before(place: Place, mode: Mode) -> KubeProxy:
    """Runs and stops a first kube-proxy: in the other back end, in iptables mode before IPVS, an older one before nftables."""
    older = {"ipvs": mode.back, "nftables": "nft", "iptables": OTHER[mode.back]}[mode.proxy]
    version = "1.20.2" if mode.proxy == "nftables" else mode.version
    old = place.proxy(Mode(version, "iptables", older))
    if version.startswith("1.20") and mode.proxy != "ipvs":
        real_cluster.kubelet(older)
    started(place, old)
    old.stop()
    return old


def after(place: Place, judge: Judge, proxy: KubeProxy, old: KubeProxy) -> None:
    """The leftovers of the other kube-proxy are found, requests are still judged right, and the finding's cure helps."""
    where, mode = f"{proxy.mode.name} after {old.mode.name}", proxy.mode.proxy
    requests = [a for a in real_cluster.requests() if a.label != HOSTED]
    if mode == "nftables":
        for finding in judge.broken(where, requests, "leftover_chains", certain=False):
            for command in re.findall("`([^`]+)`", finding.cure):
                subprocess.run(command, shell=True, check=True, capture_output=True)
    else:
        judge.broken(where, requests, "two_modes" if mode == "ipvs" else "mixed_backends", ("leftover_chains",))
        if mode == "ipvs":
            # In ipvs mode the cleanup removes the rules of both modes.
            proxy.stop()
        assert old.cleanup() == 0, old.log_end()
        if mode == "ipvs":
            started(place, proxy)
    judge.audit(f"{where}, cured")


def host_port(place: Place, back: str, port: int = HOST_PORT, remove: bool = False) -> None:
    """Runs the real portmap for the pod with a hostPort."""
    program = real_proxy.portmap()
    assert program, "portmap is not installed: apt-get install containernetworking-plugins"
    mapping = real_proxy.HostPort(port, HOSTED, PODS[HOSTED.partition("/")[2]], audit_nodes.HOSTED, CONTAINER)
    real_proxy.host_port(program, back, place.folder, mapping, remove)


def changed(place: Place, proxy: KubeProxy, judge: Judge, kube: OwnerResolver) -> None:
    """Endpoints change, kube-proxy is restarted, the API ends and starts again with another NodePort."""
    name = proxy.mode.name
    place.api.put(real_cluster.slice_of(WEB, "pod-c"))
    until(lambda: _behind(proxy, "pod-c") and not _behind(proxy, "pod-a"), proxy, "the endpoints did not change")
    judge.healthy(f"{name}, endpoints changed", of_web("pod-c"))
    proxy.stop()
    judge.healthy(f"{name} stopped", of_web("pod-c"))
    started(place, proxy)
    judge.healthy(f"{name} restarted", of_web("pod-c"))
    place.api.die()
    judge.healthy(f"{name}, API not reachable", of_web("pod-c"))
    other = real_cluster.with_node_port(place.api.objects, WEB, real_cluster.CHANGED_PORT)
    place.api.put(other)
    place.api.start()
    until(lambda: str(real_cluster.CHANGED_PORT) in rules(proxy.mode), proxy, "the NodePort did not change")
    port = (real_cluster.CHANGED_PORT, "tcp")
    until(lambda: kube.cluster.store.by_node_port.all(port), proxy, "the tracer did not learn of the NodePort")
    judge.healthy(f"{name}, API back", of_web("pod-c", real_cluster.CHANGED_PORT))
    place.api.put(real_cluster.with_node_port(place.api.objects, WEB, NODE_PORTS[WEB]))
    until(lambda: str(real_cluster.CHANGED_PORT) not in rules(proxy.mode), proxy, "the NodePort did not change back")


def of_web(pod: str, node_port: int = NODE_PORTS[WEB]) -> list[Request]:
    """Two requests to the web Service, which this pod must answer."""
    return [Request(CLIENT, NODE, node_port, WEB, (pod,)), Request("pod-b", ADDRESSES[WEB], 80, WEB, (pod,))]


def _behind(proxy: KubeProxy, pod: str) -> bool:
    """Whether the rules lead from the web Service to this pod."""
    text = rules(proxy.mode)
    if proxy.mode.proxy == "iptables":
        return any(f'"{WEB}:http' in line and f"{PODS[pod]}:" in line for line in text.splitlines())
    if proxy.mode.proxy == "nftables":
        _, _, chain = text.partition(f"-{WEB}/tcp/http {{\n")
        return PODS[pod] in chain.partition("}\n\n")[0] or f"{WEB}/tcp/http__{PODS[pod]}/" in text
    server = text.partition(f"{ADDRESSES[WEB]}:80 ")[2].partition("\nTCP")[0]
    # "-> ADDRESS:PORT Masq WEIGHT ...": kube-proxy keeps a server with connections, with weight 0, until they have ended.
    servers = [line.split() for line in server.splitlines() if f"{PODS[pod]}:" in line]
    return any(len(words) > 3 and words[3] != "0" for words in servers)


def _is_local(proxy: KubeProxy) -> bool:
    """Whether the rules of policy Local lead from the NodePort to a pod. With IPVS: whether the NodePort has a real server."""
    text = rules(proxy.mode)
    if proxy.mode.proxy == "ipvs":
        return f"{PODS['pod-a']}:" in text.partition(f"{NODE}:{NODE_PORTS[LOCAL]} ")[2].partition("\nTCP")[0]
    return f'"{LOCAL} has no local endpoints"' not in text


def incidents(place: Place, proxy: KubeProxy, judge: Judge) -> None:
    """A process on a NodePort; a hostPort that is a NodePort; kube-proxy with a name that is not its Node's."""
    name = proxy.mode.name
    proxy.stop()
    listening = servers.start([servers.Server(None, "web-host", http=NODE_PORTS[LONELY], udp=None)])
    started(place, proxy)
    judge.broken(
        f"{name}, a process on a NodePort",
        [Request(CLIENT, NODE, NODE_PORTS[LONELY], LONELY, (REFUSED,))],
        "nodeport_host_process",
    )
    servers.stop(listening)
    as_before = next(o for o in place.api.objects if o["metadata"]["name"] == HOSTED.partition("/")[2])
    place.api.put(real_cluster.with_host_port(as_before, NODE_PORTS[WEB]))
    port = (NODE_PORTS[WEB], "tcp")
    until(lambda: judge.cluster.store.by_host_port.all(port), proxy, "the tracer did not learn of the hostPort")
    host_port(place, proxy.mode.back, NODE_PORTS[WEB])
    both = Request(CLIENT, NODE, NODE_PORTS[WEB], WEB, ("pod-c", "pod-d"))
    judge.broken(f"{name}, a hostPort that is a NodePort", [both], "hostport_takes_service")
    host_port(place, proxy.mode.back, NODE_PORTS[WEB], remove=True)
    place.api.put(as_before)
    proxy.stop()
    if proxy.mode.version.startswith("1.20"):
        other = place.proxy(proxy.mode, "bare-name")
        started(place, other)
        until(lambda: not _is_local(other), other, "the Service still has a local endpoint")
        try:
            lost = Request(CLIENT, NODE, NODE_PORTS[LOCAL], LOCAL, (real_cluster.SILENT, REFUSED))
            judge.broken(f"{name} --hostname-override=bare-name", [lost, lost], "no_local_endpoints")
        finally:
            other.stop()


def cleaned(place: Place, mode: Mode) -> None:
    """After `kube-proxy --cleanup` its rules are removed, and nothing is found."""
    # kube-proxy 1.20 leaves its virtual servers of IPVS (seen with 1.20.2 on Linux 6.12).
    text = rules(mode) if mode.proxy != "ipvs" else rules(mode).partition("IP Virtual Server")[0]
    left = [line for line in text.splitlines() if str(NODE_PORTS[WEB]) in line]
    assert not left, f"{mode.name}: --cleanup has left its rules: {left[:3]}"
    with place.judged() as (judge, _):
        judge.audit(f"{mode.name} cleaned")
