# SPDX-License-Identifier: Apache-2.0
"""Makes faults while a tracer runs."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scenes import topology, traffic
from scenes.netns import entered
from tests.kernel.tracers import Tracer

LATER, DOOMED = 9124, 9125
"""Ports: of a rule with a match that is loaded while packets are traced; of a namespace that is removed."""
STRING = f"INPUT -p tcp --dport {LATER} -m string --string nothing --algo bm -j DROP".split()
DOOMED_ADDRESS = "10.99.0.2"


def step_clock(seconds: int) -> None:
    subprocess.run(["date", "-s", f"@{int(time.time()) + seconds}"], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def rule_of_a_new_module() -> Iterator[None]:
    """Adds a rule of legacy iptables with the match `string`; the kernel then loads the match's module."""
    subprocess.run(["iptables-legacy", "-I", *STRING], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables-legacy", "-D", *STRING], check=True)


def loaded(module: str) -> bool:
    return any(line.split()[0] == module for line in Path("/proc/modules").read_text().splitlines())


def unload(module: str) -> str:
    """Unloads a module; returns the message of rmmod, "" if the module was removed."""
    return subprocess.run(["rmmod", module], capture_output=True, text=True).stderr.strip()


@contextmanager
def doomed_namespace() -> Iterator[None]:
    """Makes a namespace behind a veth pair; it is removed when the block ends."""
    for command in (
        "ip netns add doomed",
        "ip link add doomed0 type veth peer name eth0 netns doomed", "ip addr add 10.99.0.1/24 dev doomed0",
        "ip link set doomed0 up", f"ip -n doomed addr add {DOOMED_ADDRESS}/24 dev eth0", "ip -n doomed link set eth0 up",
    ):  # fmt: skip
        subprocess.run(command.split(), check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "netns", "del", "doomed"], check=True)


@contextmanager
def asleep(tracer: Tracer) -> Iterator[None]:
    """Stops the tracer's process, as a suspended terminal does; the probes continue."""
    tracer.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        tracer.signal(signal.SIGCONT)


def flood(count: int) -> None:
    """Sends UDP from the client to the NodePort without waiting for answers."""
    with entered(topology.CLIENT), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(count):
            sock.sendto(b"x", (topology.NODE4, traffic.NODEPORT_UDP))
