# SPDX-License-Identifier: Apache-2.0
"""4: kube-proxy uses the short host name, the node is registered with its full name: no endpoint is ever local."""

from __future__ import annotations

import socket

from incidents import kube_proxy, objects, restore
from incidents.objects import Object
from scenes import scene, servers
from scenes import traffic as ask
from scenes.rules import Backend
from scenes.topology import NODE4, PODS, STATE_DIR

NUMBER, TITLE = 4, "'has no local endpoints' on a node where the pods run"
NODE_PORT, SERVICE = 30420, "2048-game/service-2048"
SYMPTOM = (
    "Two pods of a Service run on this node, and its externalTrafficPolicy is Local. Requests to its NodePort time out here."
)
PORTS = (NODE_PORT,)
STATES = {"host-name": 1, "flag-not-heeded": 1, "newer": 1, "healthy": 0, "elsewhere": 0}
HOST = "ip-10-188-166-140"
NODE = f"{HOST}.ec2.internal"
OLD_NAME = STATE_DIR / "hostname"


def up(state: str, backend: Backend) -> list[Object]:
    """newer: 1.36's rules. elsewhere: the pods run on another node, and the policy works as intended."""
    scene.bare()
    restore({"newer": "local-none-1.36", "healthy": "local-1.20"}.get(state, "local-none-1.20"), backend)
    if not OLD_NAME.exists():
        OLD_NAME.write_text(socket.gethostname())
    socket.sethostname(HOST)
    override = NODE if state in ("healthy", "elsewhere") else ""
    config = f'kind: KubeProxyConfiguration\nmode: iptables\nhostnameOverride: "{override}"\n'
    kube_proxy.start(*([f"--hostname-override={NODE}"] if state == "flag-not-heeded" else []), config=config)
    servers.start([servers.Server(pod.name, f"game-{pod.name[-1]}", http=80, udp=None) for pod in PODS[:2]])
    on = "ip-10-188-166-141.ec2.internal" if state == "elsewhere" else NODE
    pods = [(f"app-2048-{pod.name[-1]}", pod.addr4, on) for pod in PODS[:2]]
    return [
        objects.node(NODE, NODE4, "10.244.0.0/24" if state != "elsewhere" else "10.244.9.0/24"),
        objects.service(SERVICE, "172.30.20.48", 80, NODE_PORT, externalTrafficPolicy="Local", healthCheckNodePort=32198),
        objects.endpoints(SERVICE, pods, 80),
        *(objects.pod(f"2048-game/{name}", address, on, 80) for name, address, on in pods if state != "elsewhere"),
    ]


def traffic(state: str) -> list[tuple[str, str]]:
    replies = [ask.http_get(NODE4, NODE_PORT, timeout=0.8) for _ in range(2)]
    return [(f"curl -m 0.8 http://{NODE4}:{NODE_PORT}/", reply.body or reply.outcome) for reply in replies]


def down() -> None:
    if OLD_NAME.exists():
        socket.sethostname(OLD_NAME.read_text())
        OLD_NAME.unlink()
