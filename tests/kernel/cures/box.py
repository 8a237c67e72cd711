# SPDX-License-Identifier: Apache-2.0
"""The node on which cases are built: links and pods of audit_nodes.py in a throw-away namespace, the API's objects, and what
the tracer reads from them. Nothing is faked: rules, sets, sockets and settings are the kernel's.
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
from tests.support.kubectl_api import KubectlApi
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
    """The node. api: the server that `kubectl` talks to; the findings use the same objects."""

    def __init__(self, api: KubectlApi, machine: int | None = None) -> None:
        """machine: descriptor of the machine's first network namespace; None if the machine is also used by others."""
        self.api, self.machine = api, machine
        self._ends: list[Callable[[], object]] = []

    def build(self) -> None:
        """Makes the links and the pods' namespaces; called once."""
        for name in ("client", *LOCAL, "far"):
            subprocess.run(["ip", "netns", "add", name], check=True)
        audit_nodes.build()

    def clear(self) -> None:
        """Removes what the last case left."""
        for end in reversed(self._ends):
            end()
        self._ends.clear()
        flush()
        links.remove_sets()
        self.api.replace([])

    def at_end(self, do: Callable[[], object]) -> None:
        """Registers a function that is called when the case is over."""
        self._ends.append(do)

    def put(self, *steps: Step) -> None:
        """Writes rules. steps: (program, text) as in audit_nodes.py. Raises OSError."""
        for program, text in steps:
            done = subprocess.run(_COMMANDS[program], input=text, text=True, capture_output=True, check=False)
            if done.returncode:
                raise OSError(f"{_COMMANDS[program]}: {done.stderr}\n{text}")

    def rewrite(self, *steps: Step) -> None:
        """Replaces all rules, as a program that writes all its rules anew."""
        flush()
        self.put(*steps)

    def objects(self, *items: Object) -> None:
        self.api.replace(items)

    def set(self, name: str, value: str) -> None:
        """Sets a sysctl until the case is over."""
        path = Path("/proc/sys", name)
        before = path.read_text()
        self.at_end(lambda: path.write_text(before))
        path.write_text(value)

    def listen(self, port: int, namespace: str | None = None) -> socket.socket:
        """Opens a listening socket of this process until the case is over."""
        with netns.entered(namespace):
            sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("0.0.0.0", port))
        sock.listen(16)
        self.at_end(sock.close)
        return sock

    def run(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Starts a process that runs until the case is over."""
        process = subprocess.Popen(words, text=True, stdout=subprocess.PIPE, **options)

        def end() -> None:
            process.kill()
            process.wait()

        self.at_end(end)
        return process

    def kube_proxy(self, *options: str, port: int = 0) -> subprocess.Popen[str]:
        """Starts a process with kube-proxy's command line. port: a port that it listens on, 0 = none."""
        process = self.run("kube-proxy", "-c", _PROXY, str(port), *options, executable=sys.executable)
        assert process.stdout and process.stdout.readline() == "ready\n"
        return process

    # --- what the tracer reports

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
        """The audit's findings of this name. key: the first elements of the finding's key."""
        return [f for f in audit(self.state) if f.name == name and f.key[: len(key)] == key]

    def packets(self, *queries: PathQuery) -> list[Packet]:
        """Predicts these packets with the rules and the routing of now, with owners: all paths of each."""
        state, found = self.state, []
        for query in queries:
            for predicted in state.predictor.predict(query):
                found.append(attribute(predicted.packet, state.cluster))
        return found

    def predicted_findings(self, name: str, *queries: PathQuery) -> list[Finding]:
        """The findings of this name in the predicted packets."""
        return self.packet_findings(name, self.packets(*queries))

    def packet_findings(self, name: str, packets: list[Packet]) -> list[Finding]:
        findings = Findings(self.context)
        for packet in packets:
            findings.look(attribute(packet, self.context.cluster))
        return [f for f in findings.all if f.name == name]


def flush() -> None:
    """Removes all rules of this namespace, and nothing of the machine: rules.flush() would unload modules."""
    subprocess.run(["nft", "flush", "ruleset"], check=True)
    names = Path("/proc/net/ip_tables_names")
    for table in names.read_text().split() if names.exists() else ():
        tool = ["iptables-legacy", "-t", table]
        for verb in (["-F"], ["-X"], *(["-P", hook, "ACCEPT"] for hook in ("INPUT", "FORWARD", "OUTPUT"))):
            subprocess.run([*tool, *verb], check=False, capture_output=True)


@contextmanager
def in_machine(box: Box) -> Iterator[None]:
    """Runs the block in the machine's first network namespace."""
    assert box.machine is not None
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    netns._setns(box.machine)
    try:
        yield
    finally:
        netns._setns(home)
        os.close(home)
