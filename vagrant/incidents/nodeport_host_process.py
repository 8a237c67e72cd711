# SPDX-License-Identifier: Apache-2.0
"""1: a web server on the host's network listens on a port that is also a NodePort."""

from __future__ import annotations

from incidents import kube_proxy, objects
from incidents.objects import Object
from scenes import scene, servers
from scenes import traffic as ask
from scenes.rules import Backend
from scenes.topology import NODE4, PODS

NUMBER, TITLE = 1, "Connection refused although the process listens"
LONELY, HTTP, FREE = ask.NODEPORT_LONELY, ask.NODEPORT_HTTP, 31111
SYMPTOM = (
    "A web server runs on the node itself and listens on a port there: ss shows it. Clients that connect to this port do not "
    "reach it."
)
PORTS = (LONELY, HTTP, FREE)
STATES = {"refused": 1, "silent": 1, "both": 2, "healthy": 0, "held-by-kube-proxy": 0}


def up(state: str, backend: Backend) -> list[Object]:
    """refused: the NodePort has no endpoints; silent: it has endpoints. healthy: the process has another port."""
    scene.up("http-proxy-1.20" if state == "held-by-kube-proxy" else "http-proxy", backend=backend)
    ports = {"refused": [LONELY], "silent": [HTTP], "both": [LONELY, HTTP], "healthy": [FREE]}.get(state, [])
    servers.start([servers.Server(None, f"web-{port}", http=port, udp=None) for port in ports])
    if state == "held-by-kube-proxy":
        kube_proxy.start("--hostname-override=node-1", port=HTTP)
    ends = [(f"http-proxy-{pod.name[-1]}", pod.addr4, "node-1") for pod in PODS]
    return [
        objects.node("node-1", NODE4, "10.244.0.0/24"),
        objects.service("default/http-proxy", "172.30.253.123", 8080, HTTP),
        objects.endpoints("default/http-proxy", ends, 8080),
        objects.service("default/lonely-web", "172.30.10.84", 80, LONELY, "http"),
    ]


def _get(port: int) -> tuple[str, str]:
    reply = ask.http_get(NODE4, port, timeout=1.5)
    return f"curl http://{NODE4}:{port}/", reply.body or f"connection {reply.outcome}"


def traffic(state: str) -> list[tuple[str, str]]:
    ports = {"refused": [LONELY], "silent": [HTTP], "both": [LONELY, HTTP], "healthy": [FREE, HTTP, LONELY]}.get(state, [HTTP])
    return [_get(port) for port in ports for _ in range(2)]
