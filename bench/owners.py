# SPDX-License-Identifier: Apache-2.0
"""The cost of owners with 5,000 Services of 3 endpoints each: reading objects, look-ups, memory, and the client's import.

Run it as `python -m bench.owners [services]`; it needs no root and no API. Figures go to docs/performance.md.
"""

from __future__ import annotations

import gc
import http.client
import json
import resource
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support import hop_fields
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.chain_names import endpoint_hash, service_hash
from tracer.kube.endpoint_owners import end_of
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube.owners import owner_of
from tracer.kube.owners.kube_proxy_ipvs import owner_of_virtual_server
from tracer.kube.store import ObjectStore
from tracer.kube.watch import ObjectWatch
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import Hop, Nat, NatHop, TableHop
from tracer.model.kube import ServicePort
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet
from tracer.model.rule import RuleHit, RuleLocation, Ruleset, RuleTrace
from tracer.rules import save_parser

ENDS = 3


def objects(services: int) -> list[dict[str, Any]]:
    """Services with NodePorts, one EndpointSlice each with endpoints on a hundred nodes, and the nodes."""
    made: list[dict[str, Any]] = []
    for n in range(services):
        meta = {"namespace": "default", "name": f"svc-{n}", "labels": {"app": f"svc-{n}"}, "uid": f"uid-{n}"}
        port = {"name": "http", "port": 80, "protocol": "TCP", "nodePort": 20000 + n}
        made.append({"kind": "Service", "metadata": meta, "spec": {"clusterIP": _ip("172.20", n), "ports": [port]}})
        ends = [
            {
                "addresses": [_ip("10.100", ENDS * n + e)],
                "conditions": {"ready": True},
                "nodeName": f"node-{n % 100}",
                "targetRef": {"kind": "Pod", "namespace": "default", "name": f"svc-{n}-{e}"},
            }
            for e in range(ENDS)
        ]
        labels = {"kubernetes.io/service-name": f"svc-{n}"}
        made.append(
            {
                "kind": "EndpointSlice",
                "metadata": {"namespace": "default", "name": f"svc-{n}-x", "labels": labels},
                "endpoints": ends,
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            }
        )
    for n in range(100):
        state = {"addresses": [{"type": "InternalIP", "address": f"192.168.0.{n + 1}"}]}
        made.append({"kind": "Node", "metadata": {"name": f"node-{n}"}, "spec": {"podCIDR": f"10.{n}.0.0/24"}, "status": state})
    return made


def _ip(prefix: str, n: int) -> str:
    return f"{prefix}.{n >> 8}.{n & 255}"


def rules(services: int) -> str:
    """kube-proxy 1.36's rules for these Services in nat, as iptables-save prints them."""
    lines = ["*nat", ":PREROUTING ACCEPT [0:0]", "[1:60] -A PREROUTING -j KUBE-SERVICES"]
    for n in range(services):
        label = f"default/svc-{n}:http"
        chain = service_hash(label, "tcp")
        comment = f'-m comment --comment "{label}"'
        lines.append(f"[0:0] -A KUBE-NODEPORTS -p tcp {comment} -m tcp --dport {20000 + n} -j KUBE-EXT-{chain}")
        lines.append(f"[0:0] -A KUBE-EXT-{chain} -j KUBE-SVC-{chain}")
        for e in range(ENDS):
            ip = _ip("10.100", ENDS * n + e)
            end = endpoint_hash(label, "tcp", ip, 8080)
            lines.append(f"[0:0] -A KUBE-SVC-{chain} -j KUBE-SEP-{end}")
            lines.append(f"[0:0] -A KUBE-SEP-{end} -s {ip}/32 -j KUBE-MARK-MASQ")
            lines.append(f"[0:0] -A KUBE-SEP-{end} -p tcp -j DNAT --to-destination {ip}:8080")
    return "\n".join(lines)


def each(times: int, call: Callable[[int], Any]) -> float:
    """Microseconds of CPU time per call."""
    began = time.process_time()
    for n in range(times):
        call(n)
    return (time.process_time() - began) / times * 1e6


def report(what: str, figure: str) -> None:
    print(f"{what:58} {figure}")


def main() -> None:
    services = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    _imports()
    made = objects(services)
    text = json.dumps({"kind": "List", "items": made})
    tracemalloc.start()
    store = ObjectStore("node-1")
    store.load(made)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    began = time.process_time()
    again = ObjectStore()
    again.load([json.loads(text)])
    report("read --objects, CPU s (JSON and indexes)", f"{time.process_time() - began:.2f}  ({len(text) / 1e6:.1f} MB)")
    report("memory of the store, MB", f"{size / 1e6:.1f}")
    change = each(2000, lambda n: again.apply("EndpointSlice", made[2 * (n % services) + 1]))
    report("one endpoint changes, us", f"{change:.0f}")
    known = ClusterView(store)
    _look_ups(known, services)
    _rules(known, services)
    _api(made)
    report("largest memory of this process, MB", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")


def _imports() -> None:
    code = "import time; t=time.process_time(); import tracer.kube.owner_resolver; print(time.process_time()-t)"
    costs = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(5)]
    report("import of everything for Kubernetes, CPU s", f"{min(costs):.3f}")


def _look_ups(cluster: ClusterView, services: int) -> None:
    store, times = cluster.store, 100_000

    def timed(what: str, call: Callable[[int], Any]) -> None:
        report(f"{what}, us", f"{each(times, call):.2f}")

    timed("cluster IP and port -> Service", lambda n: store.by_address.one((_ip("172.20", n % services), 80, "tcp")))
    timed("NodePort -> Service", lambda n: store.by_node_port.one((20000 + n % services, "tcp")))
    timed("pod address -> pod", lambda n: store.pod_at(_ip("10.100", n % services)))
    timed("address and port -> owner", lambda n: end_of(_ip("10.100", n % services), 8080, "tcp", cluster))
    timed("address outside the cluster -> owner", lambda n: end_of("8.8.8.8", 8080, "tcp", cluster))
    timed("virtual server -> owner", lambda n: owner_of_virtual_server(_ip("172.20", n % services), 80, "tcp", cluster))


def _rules(cluster: ClusterView, services: int) -> None:
    text = rules(services)
    began = time.process_time()
    ruleset = save_parser.parse(text)
    count = sum(map(len, ruleset.chains.values()))
    report(f"read {count} rules of iptables-save, CPU s", f"{time.process_time() - began:.2f}")
    every = [r for chain in ruleset.chains.values() for r in chain]
    times = min(10_000, count)

    def find(n: int) -> None:
        owner_of(every[n], ruleset, cluster)

    report("rule -> owner, by the API, first time, us", f"{each(times, find):.1f}")
    report("rule -> owner, second time, us", f"{each(times, find):.1f}")
    empty = ClusterView()
    owner_of(every[-1], ruleset, empty)
    alone = each(times, lambda n: owner_of(every[n], ruleset, empty))
    report("rule -> owner, from rules alone, first time, us", f"{alone:.1f}")
    report(
        "packet, DNAT after 5 chains, another Service each, us",
        f"{each(2000, lambda n: _packet(n % services, ruleset, cluster)):.0f}",
    )
    report("packet, DNAT after 5 chains, the same Service, us", f"{each(2000, lambda n: _packet(0, ruleset, cluster)):.0f}")


def _packet(n: int, ruleset: Ruleset, cluster: ClusterView) -> None:
    port = ServicePort("default", f"svc-{n}", "http", "tcp", 80)
    chain = service_hash(port.label, "tcp")
    end = endpoint_hash(port.label, "tcp", _ip("10.100", ENDS * n), 8080)
    places = (("PREROUTING", 1), ("KUBE-NODEPORTS", n + 1), (f"KUBE-EXT-{chain}", 1), (f"KUBE-SVC-{chain}", 1))
    path = tuple(RuleLocation(*place) for place in places)
    rule = ruleset.chain("ip", "nat", f"KUBE-SEP-{end}")[1]
    trace = RuleTrace((RuleHit((*path, RuleLocation(f"KUBE-SEP-{end}", 2)), rule, "DNAT", Evidence.OBSERVED),), ruleset=ruleset)
    before, after = Endpoints("8.8.8.8", 5, "192.168.0.2", 20000 + n), Endpoints("8.8.8.8", 5, _ip("10.100", ENDS * n), 8080)
    hops: list[Hop] = [
        TableHop(0, HOST, Hook.PREROUTING, table="nat", rule_trace=trace),
        NatHop(1, HOST, Hook.PREROUTING, nat=Nat("DNAT", before, after)),
    ]
    packet = attribute(Packet(1, 0, HOST, "eth0", "IPv4", "TCP", before, hops=tuple(hops)), cluster)
    assert hop_fields.owner(packet.hops[1]).label == port.label, packet.hops[1]


def _api(made: list[dict[str, Any]]) -> None:
    """Measures the time to get all names over HTTP on this machine, in pages of 500; the start does not wait for it."""
    by_kind: dict[str, list[bytes]] = {}
    for body in made:
        by_kind.setdefault(body["kind"], []).append(json.dumps(body).encode())
    paths = {"services": "Service", "endpointslices": "EndpointSlice", "nodes": "Node", "pods": "Pod"}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = parse_qs(url.query)
            found = by_kind.get(paths[url.path.rpartition("/")[2]], [])
            if "watch" in query:
                time.sleep(5)
                return
            start = int(query.get("continue", ["0"])[0])
            more = str(start + 500) if start + 500 < len(found) else ""
            meta = json.dumps({"resourceVersion": "1", "continue": more}).encode()
            text = b'{"metadata":' + meta + b',"items":[' + b",".join(found[start : start + 500]) + b"]}"
            self.send_response(http.client.OK)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store = ObjectStore()
    watch = ObjectWatch(ApiAccess("http", "127.0.0.1", server.server_address[1]), store, lambda s: "node-1")
    began = time.monotonic()
    watch.start()
    started = time.monotonic() - began
    watch.wait(60)
    report("start returns after, ms", f"{started * 1000:.1f}")
    report("all names over HTTP, s", f"{time.monotonic() - began:.2f}")
    watch.close()


if __name__ == "__main__":
    main()
