# SPDX-License-Identifier: Apache-2.0
"""The node that cases are made on: links and pods of audit_nodes.py in a throw-away namespace, the API's objects, and what the
tracer reads of them. Nothing of it is faked: rules, sets, sockets and settings are the kernel's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from incidents import links
from incidents.objects import Object
from scenes import netns
from tests.kernel import audit_nodes
from tests.kernel.audit_nodes import LOCAL
from tests.kernel.cures.kubectl_api import KubectlApi
from tracer.audit import audit
from tracer.audit.state import NodeState
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.node import addresses
from tracer.predict.query import PathQuery
from tracer.rules import inventory

Step = tuple[str, str]
_COMMANDS = {
    "legacy": ["iptables-legacy-restore", "--noflush"], "nft": ["iptables-nft-restore", "--noflush"],
    "native": ["nft", "-f", "-"], "ipset": ["ipset", "restore", "-exist"],
}  # fmt: skip

_PROXY = """
import socket, sys, time
open("/proc/self/comm", "w").write("kube-proxy")
if int(sys.argv[1]):
    held = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
time.sleep(600)
"""


class Box:
    """The node. api: what `kubectl` talks to; the findings are told of the same objects."""

    def __init__(self, api: KubectlApi, machine: int | None = None) -> None:
        """machine: descriptor of the network namespace that the machine began with; None: it is not ours alone."""
        self.api, self.machine = api, machine
        self._ends: list[Callable[[], object]] = []

    def build(self) -> None:
        """Makes links, pods and who listens in them; once."""
        for name in ("client", *LOCAL, "far"):
            subprocess.run(["ip", "netns", "add", name], check=True)
        audit_nodes.build()

    def clear(self) -> None:
        """Takes away what the last case left."""
        for end in reversed(self._ends):
            end()
        self._ends.clear()
        flush()
        links.remove_sets()
        self.api.replace([])

    def at_end(self, do: Callable[[], object]) -> None:
        """What is done when the case is over."""
        self._ends.append(do)

    def put(self, *steps: Step) -> None:
        """Writes rules. steps: (program, text) as in audit_nodes.py. OSError."""
        for program, text in steps:
            done = subprocess.run(_COMMANDS[program], input=text, text=True, capture_output=True, check=False)
            if done.returncode:
                raise OSError(f"{_COMMANDS[program]}: {done.stderr}\n{text}")

    def again(self, *steps: Step) -> None:
        """As a program that writes all its rules anew."""
        flush()
        self.put(*steps)

    def objects(self, *items: Object) -> None:
        self.api.replace(items)

    def set(self, name: str, value: str) -> None:
        """A sysctl, until the case is over."""
        path = Path("/proc/sys", name)
        before = path.read_text()
        self.at_end(lambda: path.write_text(before))
        path.write_text(value)

    def listen(self, port: int, space: str | None = None) -> socket.socket:
        """A socket of this process, until the case is over."""
        with netns.entered(space):
            sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("0.0.0.0", port))
        sock.listen(16)
        self.at_end(sock.close)
        return sock

    def run(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """A process, until the case is over."""
        process = subprocess.Popen(words, text=True, stdout=subprocess.PIPE, **options)

        def end() -> None:
            process.kill()
            process.wait()

        self.at_end(end)
        return process

    def kube_proxy(self, *options: str, port: int = 0) -> subprocess.Popen[str]:
        """A process with kube-proxy's command line, which holds a port if one is given."""
        process = self.run("kube-proxy", "-c", _PROXY, str(port), *options, executable=sys.executable)
        assert process.stdout and process.stdout.readline() == "ready\n"
        return process

    # --- what the tracer says

    @property
    def context(self) -> FindingContext:
        store = ObjectStore("node-1")
        store.load(self.api.as_objects())
        local = addresses.local_addresses()
        return FindingContext(ClusterView(store, CniCache(()), local, ipvs=frozenset()))

    @property
    def state(self) -> NodeState:
        found = inventory.read(True)
        assert not found.unread, found.unread
        return NodeState(self.context, found)

    def audit(self, name: str, *key: object) -> list[Finding]:
        """What the audit finds under this name; key: how the finding's key begins."""
        return [f for f in audit(self.state) if f.name == name and f.key[: len(key)] == key]

    def packets(self, *asked: PathQuery) -> list[Packet]:
        """These packets as the rules and the routing would treat them now, with owners: all ways of each."""
        state, found = self.state, []
        for question in asked:
            for predicted in state.predictor.predict(question):
                attribute(predicted.packet, state.cluster)
                found.append(predicted.packet)
        return found

    def shown(self, name: str, *asked: PathQuery) -> list[Finding]:
        """What findings say of these packets."""
        return self.look(name, self.packets(*asked))

    def look(self, name: str, packets: list[Packet]) -> list[Finding]:
        findings = Findings(self.context)
        for packet in packets:
            attribute(packet, self.context.cluster)
            findings.look(packet)
        return [f for f in findings.all if f.name == name]


def flush() -> None:
    """Takes all rules of this namespace away, and nothing of the machine: rules.flush() would unload modules."""
    subprocess.run(["nft", "flush", "ruleset"], check=True)
    names = Path("/proc/net/ip_tables_names")
    for table in names.read_text().split() if names.exists() else ():
        tool = ["iptables-legacy", "-t", table]
        for verb in (["-F"], ["-X"], *(["-P", hook, "ACCEPT"] for hook in ("INPUT", "FORWARD", "OUTPUT"))):
            subprocess.run([*tool, *verb], check=False, capture_output=True)


@contextmanager
def in_machine(box: Box) -> Iterator[None]:
    """In the network namespace that the machine began with."""
    assert box.machine is not None
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    netns._setns(box.machine)
    try:
        yield
    finally:
        netns._setns(home)
        os.close(home)
