# SPDX-License-Identifier: Apache-2.0
"""Scenes that make each finding, and each cause of a SYN, that asks questions about the node or a namespace.

tests/unit/findings/test_questions.py requires a scene for each file with ASKS. tests/kernel/test_record_only.py records them.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import incidents
from incidents import objects, service_situations
from incidents.objects import Object
from scenes import packets, scene, servers, topology
from scenes.netns import entered
from tests.kernel import syn_scenes
from tests.kernel.sides import SNAT_PORT, V4, also_rules

MARTIAN_PORT = 10250
RACE_PORT = 9131
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2


@dataclass(frozen=True)
class QuestionScene:
    """A scene.

    Attributes:
        asks: File name of the finding or of the cause.
        ports: Ports of its packets, for the filter.
        up: Builds it; returns the API's objects.
        traffic: Makes its packets on entering. What they met, such as a listener, stays until it is left.
        cause: Cause that a SYN must have, "" = it must have the finding `asks`.
    """

    asks: str
    ports: tuple[int, ...]
    up: Callable[[], list[Object]]
    traffic: Callable[[], AbstractContextManager[object]]
    cause: str = ""

    @property
    def name(self) -> str:
        return f"{self.asks}-{'cause' if self.cause else 'finding'}"


def plain() -> list[Object]:
    """The scene without an incident."""
    incidents.down()
    scene.up()
    return [objects.node("node-1", topology.NODE4, "10.244.0.0/24")]


def send_martian() -> None:
    """Sends a SYN to the loopback address from another address."""
    with suppress(PermissionError):
        packets.send_tcp("127.0.0.1", MARTIAN_PORT, src=topology.NODE4, flags=packets.SYN, ns=None)


def small_bridge() -> list[Object]:
    found = plain()
    subprocess.run(["ip", "link", "set", topology.BRIDGE, "mtu", "1000"], check=True)
    return found


def send_too_long() -> None:
    """Sends datagrams of 1300 bytes that must not be fragmented to a pod behind small_bridge()."""
    with entered(topology.CLIENT):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        for _ in range(2):
            with suppress(OSError):
                sock.sendto(b"x" * 1300, (topology.PODS[0].addr4, servers.UDP_PORT))


def race() -> None:
    """Sends datagrams of two connections that get the same address and port by an SNAT: conntrack inserts only one of them."""
    source = f"{V4.gateway}:{SNAT_PORT}"
    with also_rules(f"*nat\n-A POSTROUTING -p udp --dport {RACE_PORT} -j SNAT --to-source {source}\nCOMMIT\n"):
        for _ in range(2):
            with entered(topology.CLIENT):
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with sock:
                sock.sendto(b"x", (V4.pod_a, RACE_PORT))
            time.sleep(1)


def sending(send: Callable[[], object]) -> Callable[[], AbstractContextManager[object]]:
    """Traffic that leaves nothing behind."""

    def traffic() -> AbstractContextManager[object]:
        send()
        return nullcontext()

    return traffic


def of_incident(number: int, state: str) -> QuestionScene:
    incident = incidents.find(number)
    send = sending(lambda: incident.traffic(state))
    return QuestionScene(incident.finding, incident.ports, lambda: incident.up(state), send)


def of_syns(asks: str, name: str, is_finding: bool = False) -> QuestionScene:
    """A scene of syn_scenes.py, given by its name. is_finding: for the finding, not for the cause."""
    found = next(each for each in syn_scenes.SCENES if each.name == name)

    return QuestionScene(asks, (found.port,), plain, found.up, "" if is_finding else found.cause)


def of_situation(asks: str, name: str) -> QuestionScene:
    """A situation of service_situations.py, given by its name."""
    found = next(each for each in service_situations.every() if each.name == name)
    return QuestionScene(asks, found.ports, found.up, sending(found.traffic))


SCENES = (
    of_incident(1, "refused"), of_incident(2, "stuck"), of_incident(3, "stale"), of_incident(4, "host-name"),
    of_incident(5, "node-port"),
    QuestionScene("martian_localnet", (MARTIAN_PORT,), plain, sending(send_martian)),
    QuestionScene("mtu", (servers.UDP_PORT,), small_bridge, sending(send_too_long)),
    of_situation("nodeport_address", "NodePort at another address of the node"),
    of_situation("ephemeral_port_taken", "an idle tcp connection with a NodePort as its port"),
    of_situation("rules_behind_objects", "kube-proxy is gone, a Service is new"),
    of_situation("nfqueue_unattended", "queue without a process"),
    of_situation("invalid_then_reset", "segments outside of the window"),
    QuestionScene("udp_insert_race", (RACE_PORT,), plain, sending(race)),
    of_syns("conntrack_full", "conntrack's table full", is_finding=True),
    of_syns("conntrack_full", "conntrack's table full"),
    of_syns("time_wait", "two clients behind one SNAT address"),
    of_syns("answered_from_other_address", "listener on another address"),
)  # fmt: skip
NOT_ON_NEW_KERNELS = frozenset({"tw_recycle"})
"""Causes that no kernel of the lab has: Linux before 4.12."""
