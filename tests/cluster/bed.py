# SPDX-License-Identifier: Apache-2.0
"""The machines of a cluster, an API server whose pods run commands in them, and the plugin run by the real kubectl."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cluster_scene import objects, plan
from cluster_scene.plan import ClusterPlan
from lab.cluster import Cluster, Member
from lab.exec_channel import Completed, GuestCommand
from lab.host import LabError
from lab.wire_key import WireKey
from tests.support import kubectl_binary
from tests.support.exec_api import ExecApi
from tests.support.exec_socket import ExecSession

ROOT = Path(__file__).resolve().parents[2]
KUBECONFIG = "/run/lab-kubeconfig"
"""In a machine."""
SCENE = ("env", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=/mnt/share/vagrant", "python3", "-m", "cluster_scene")
PORTS = frozenset({plan.HTTP_PORT, plan.UDP_PORT})
START_SECONDS = 420.0
"""Limit for the start of all agents, s: they compile their probes on emulated processors."""
END_SECONDS = 90.0
"""Limit for the end of a run, s."""
FIRST_CLOCK_SECONDS = 40
CLOCK_STEP_SECONDS = -47
CLOCK_PPM = 150
"""How the machines' clocks differ from the host's and from each other."""
SERVICES = ("--service", "shop/cart", "--service", "shop/stock")


def is_of_services(key: WireKey) -> bool:
    """Whether a packet on the wire is one of the scene's traffic."""
    return key.sport in PORTS or key.dport in PORTS


def members(kernels: Mapping[str, str], consoles: Path | None = None) -> list[Member]:
    """The machines: letter of the node -> kernel. Their clocks are seconds apart, and run at different speeds."""
    return [
        Member(
            f"node-{letter}",
            kernel,
            clock_seconds=FIRST_CLOCK_SECONDS + number * CLOCK_STEP_SECONDS,
            clock_ppm=number * CLOCK_PPM,
            console=consoles / f"console-{letter}" if consoles else None,
        )
        for number, (letter, kernel) in enumerate(kernels.items())
    ]


def backend_of(node: plan.NodePlan) -> str:
    """The back end of iptables on a node: legacy on the first one, nft on the second one, and so on."""
    return "legacy" if node.number % 2 else "nft"


class TestBed:
    """A cluster that is ready for the plugin. cluster: its machines have booted; the bed does not end them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.plan = ClusterPlan.of(list(cluster))
        self._stack = ExitStack()
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="k8snet-cluster-")))
        self.api = self._stack.enter_context(ExecApi(self._execute))
        self.api.replace(objects.all_objects(self.plan))
        self.kubeconfig = Path(self.api.kubeconfig(self.directory))
        self.nodes_of_pods = {objects.agent_pod_name(node): node.name for node in self.plan.nodes}
        self._write_plugin()

    def __enter__(self) -> TestBed:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def build(self) -> None:
        """Builds the scene on all machines, and gives them access to the API."""

        def one(node: plan.NodePlan) -> None:
            self.scene("up", node, "--backend", backend_of(node), seconds=300)
            access = self.kubeconfig.read_text().replace("127.0.0.1", "10.0.2.2")
            commands = (
                f"printf %s {shlex.quote(access)} >{KUBECONFIG}"
                " && ip addr add 10.0.2.15/24 dev eth1 && ip link set eth1 up"
                " && mkdir -p /var/cache/k8snet-trace"
            )
            self.cluster.run(node.name, ["sh", "-c", commands])

        self.on_all_nodes(one)

    def on_all_nodes(self, work: Callable[[plan.NodePlan], Any]) -> list[Any]:
        """Calls a function for each node, at the same time."""
        with ThreadPoolExecutor(len(self.plan.nodes)) as pool:
            return list(pool.map(work, self.plan.nodes))

    def scene(self, verb: str, node: plan.NodePlan, *options: str, seconds: float = 600) -> Any:
        """Runs a command of the scene; returns what it printed (JSON), or None."""
        names = ",".join(each.name for each in self.plan.nodes)
        done = self.cluster.run(node.name, [*SCENE, verb, node.name, names, *options], timeout=seconds)
        return json.loads(done.text) if done.text else None

    def traffic(self, requests: int, datagrams: int) -> dict[str, dict[str, Any]]:
        """All nodes make traffic at the same time; returns the counts by node and kind."""
        words = ("--tcp", str(requests), "--udp", str(datagrams))
        found = self.on_all_nodes(lambda node: self.scene("traffic", node, *words, seconds=1200))
        return {node.name: counts for node, counts in zip(self.plan.nodes, found, strict=True)}

    def _execute(self, namespace: str, pod: str, argv: Sequence[str]) -> ExecSession:
        node = self.nodes_of_pods.get(pod)
        if node is None:
            raise FileNotFoundError(2, f"{namespace}/{pod} runs no commands")
        return self.start(node, argv)

    def start(self, node: str, argv: Sequence[str]) -> GuestCommand:
        """Starts a command in a machine, as in the DaemonSet's pod."""
        return self.cluster[node].start(argv, {"NODE_NAME": node, "KUBECONFIG": KUBECONFIG})

    # ---- the plugin ----

    def _write_plugin(self) -> None:
        path = self.directory / "kubectl-k8snet_trace"
        program = "from tracer.cli.cluster_plugin import main; main()"
        path.write_text(f"#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -c '{program}' \"$@\"\n")
        path.chmod(0o755)
        kubectl = kubectl_binary.path()
        if not kubectl:
            raise LabError("kubectl is not installed: `make setup` installs it")
        (self.directory / "kubectl").symlink_to(kubectl)

    def plugin(self, *options: str) -> PluginRun:
        """Starts `kubectl k8snet-trace` with these options."""
        path = f"{self.directory}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "KUBECONFIG": str(self.kubeconfig)}
        return PluginRun(["kubectl", "k8snet-trace", *options], environment)

    # ---- what must not stay ----

    def probes(self) -> dict[str, str]:
        """What tracing could leave on each node: BPF programs, maps, links, kprobes and agents; empty when there is nothing."""
        script = (
            "for what in prog map link; do bpftool $what show; done 2>/dev/null | grep -E '^[0-9]+:'"
            " | grep -v 'type cgroup\\|name sd_\\|libbpf\\|iterator' ; cat /sys/kernel/tracing/kprobe_events"
            " ; pgrep -af '[-]m tracer agent'; true"
        )
        return dict(
            zip(
                self.cluster,
                self.on_all_nodes(lambda node: self.cluster.run(node.name, ["sh", "-c", script]).text),
                strict=True,
            )
        )

    def wait_for_no_probes(self, before: Mapping[str, str], seconds: float = 60) -> dict[str, str]:
        """What is left on nodes beside what was there before, after at most so many seconds."""
        until = time.monotonic() + seconds
        while (now := self.probes()) != before and time.monotonic() < until:
            time.sleep(1)
        return {name: text for name, text in now.items() if text != before[name]}


class PluginRun:
    """A running plugin; its output is collected."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.lines: list[bytes] = []
        self.errors: list[bytes] = []
        self._threads = [
            threading.Thread(target=self._collect, args=(pipe, into), daemon=True)
            for pipe, into in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for thread in self._threads:
            thread.start()

    def _collect(self, pipe: Any, into: list[bytes]) -> None:
        into.extend(iter(pipe.readline, b""))

    @property
    def error_text(self) -> str:
        return b"".join(self.errors).decode(errors="replace")

    def objects(self) -> list[dict[str, Any]]:
        """The lines of JSON so far."""
        return [json.loads(line) for line in list(self.lines) if line.endswith(b"\n")]

    def wait_for_lines(self, is_enough: Callable[[list[dict[str, Any]]], bool], seconds: float) -> bool:
        """Waits until the lines fulfil a condition; False when the time is over or the program has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if is_enough(self.objects()):
                return True
            if self.process.poll() is not None:
                return is_enough(self.objects())
            time.sleep(0.5)
        return False

    def stop(self, seconds: float = END_SECONDS) -> Completed:
        """Ctrl-C, and the end of the program."""
        if self.process.poll() is None:
            self.process.send_signal(2)
        return self.wait(seconds)

    def wait(self, seconds: float = END_SECONDS) -> Completed:
        """Waits for its end; after `seconds` it is killed, and its status is -9."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(10)
        return Completed(self.process.returncode, b"".join(self.lines), b"".join(self.errors))
