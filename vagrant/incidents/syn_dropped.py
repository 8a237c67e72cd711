# SPDX-License-Identifier: Apache-2.0
"""2: about every third request times out: its SYNs reach the listener, and get no answer.

stuck: one of three endpoints does not accept. syn-queue: the only endpoint has a short SYN queue, and SYNs flood it.
timestamps: two clients have one address and port after SNAT, and the second one's clock is behind: the rest of tcp_tw_recycle's
behaviour since Linux 4.12.
"""

from __future__ import annotations

import struct
import time

from incidents import objects
from incidents.objects import Object
from incidents.proxy import iptables
from incidents.proxy.model import Service
from scenes import nfnetlink, packets, rules, scene, servers
from scenes import traffic as ask
from scenes.rules import Backend
from scenes.topology import CLIENT, GATEWAY4, NODE4, PODS

NUMBER, TITLE = 2, "Every third or fourth request times out"
SYMPTOM = (
    "Clients outside use a Service through its NodePort. Sometimes a request times out. The SYN does arrive at the pod, but no "
    "answer comes back."
)
PORTS = (ask.NODEPORT_HTTP,)
OPTIONS = ("--drops-only",)
STATES = {"stuck": 1, "syn-queue": 1, "timestamps": 1, "healthy": 0}
SERVICE, CLUSTER_IP = "default/http-proxy", "172.30.253.123"
BACKLOG, MOST, FLOOD, SNAT_PORT = 2, 40, 9, 20000


def up(state: str, backend: Backend) -> list[Object]:
    first = servers.Server(PODS[0].name, PODS[0].name, accept=state != "stuck", backlog=4 if state == "syn-queue" else BACKLOG)
    serve = servers.POD_SERVERS if state == "healthy" else (first, *servers.POD_SERVERS[1:])
    pods = PODS if state in ("stuck", "healthy") else PODS[:1]
    if pods == PODS:
        scene.up(backend=backend, serve=serve)
    else:
        scene.bare(serve)
        _one_endpoint(backend)
    if state == "syn-queue":
        scene.set_in_namespace("net/ipv4/tcp_syncookies", "0", PODS[0].name)
    if state == "timestamps":
        # The client's timestamps are then its uptime, so an older one is easy to make.
        scene.set_in_namespace("net/ipv4/tcp_timestamps", "2", CLIENT)
        one_port = f"-p tcp -d {PODS[0].addr4}/32 --dport {servers.HTTP_PORT} -j SNAT --to-source {GATEWAY4}:{SNAT_PORT}"
        rules.restore_text(f"*nat\n-I POSTROUTING 1 {one_port}\nCOMMIT\n", 4, backend, flush=False)
    ends = [(f"http-proxy-{pod.name[-1]}", pod.addr4, "node-1") for pod in pods]
    return [
        objects.node("node-1", NODE4, "10.244.0.0/24"),
        objects.service(SERVICE, CLUSTER_IP, 8080, ask.NODEPORT_HTTP, externalTrafficPolicy="Cluster"),
        objects.endpoints(SERVICE, ends, 8080),
    ]


def _one_endpoint(backend: Backend) -> None:
    one = Service(SERVICE, CLUSTER_IP, 8080, ask.NODEPORT_HTTP, ((PODS[0].addr4, servers.HTTP_PORT),))
    rules.restore_text(iptables.rules([one]), 4, backend)


def traffic(state: str) -> list[tuple[str, str]]:
    """Fills the first pod's queue, then makes requests until some were answered and one was not."""
    results: list[tuple[str, str]] = []
    if state == "timestamps":
        results.append(_get())
        time.sleep(0.3)
        # The conntrack entry is gone before the other client comes; the pod's TIME_WAIT socket is not.
        nfnetlink.conntrack_flush()
        older = struct.pack("!BBBBII", 1, 1, 8, 10, 1, 0)
        packets.send_tcp(NODE4, ask.NODEPORT_HTTP, sport=33333, flags=packets.SYN, options=older)
        return [*results, (f"another client behind {GATEWAY4}:{SNAT_PORT}", "no answer")]
    if state == "syn-queue":
        for n in range(FLOOD):
            packets.send_tcp(NODE4, ask.NODEPORT_HTTP, src="203.0.113.50", sport=20000 + n, flags=packets.SYN)
            time.sleep(0.02)
        return [(f"{FLOOD} clients that never complete a handshake", "no answer"), _get()]
    if state != "healthy":
        with ask.connections(PODS[0].addr4, servers.HTTP_PORT, BACKLOG + 1):
            pass
    while len(results) < MOST and (len(results) < 6 or (state != "healthy" and "timeout" not in {what for _, what in results})):
        results.append(_get())
    return results


def _get() -> tuple[str, str]:
    reply = ask.http_get(timeout=0.7)
    return f"curl -m 0.7 http://{NODE4}:{ask.NODEPORT_HTTP}/", reply.body or reply.outcome
