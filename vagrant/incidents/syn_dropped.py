"""2: one of three endpoints does not accept, so about every third request times out. Its SYNs come, and nobody answers."""

from __future__ import annotations

from incidents import objects
from incidents.objects import Object
from scenes import scene, servers
from scenes import traffic as ask
from scenes.rules import Backend
from scenes.topology import NODE4, PODS

NUMBER, TITLE = 2, "Every third or fourth request times out"
PORTS = (ask.NODEPORT_HTTP,)
STATES = {"stuck": 1, "healthy": 0}
BACKLOG, MOST = 2, 40


def up(state: str, backend: Backend) -> list[Object]:
    stuck = [servers.Server(p.name, p.name, accept=state == "healthy" or p is not PODS[0], backlog=BACKLOG) for p in PODS]
    scene.up(backend=backend, serve=servers.POD_SERVERS if state == "healthy" else stuck)
    ends = [(f"http-proxy-{pod.name[-1]}", pod.addr4, "node-1") for pod in PODS]
    return [
        objects.node("node-1", NODE4, "10.244.0.0/24"),
        objects.service("default/http-proxy", "172.30.253.123", 8080, ask.NODEPORT_HTTP, externalTrafficPolicy="Cluster"),
        objects.endpoints("default/http-proxy", ends, 8080),
    ]


def traffic(state: str) -> list[tuple[str, str]]:
    """Requests until some were answered and one was not; before that, others have filled the stuck pod's queue."""
    said: list[tuple[str, str]] = []
    if state != "healthy":
        with ask.connections(PODS[0].addr4, servers.HTTP_PORT, BACKLOG + 1):
            pass
    while len(said) < MOST and (len(said) < 6 or (state != "healthy" and "timeout" not in {what for _, what in said})):
        reply = ask.http_get(timeout=0.7)
        said.append((f"curl -m 0.7 http://{NODE4}:{ask.NODEPORT_HTTP}/", reply.body or reply.outcome))
    return said
