# SPDX-License-Identifier: Apache-2.0
"""A cluster of fake nodes: an API server with Nodes and the DaemonSet's pods, and a program in place of kubectl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import fake_kubectl
from tests.support.api_server import ApiServer

Object = dict[str, Any]


def node(name: str) -> Object:
    return {"kind": "Node", "metadata": {"name": name}, "spec": {}, "status": {"addresses": []}}


def agent_pod(node_name: str, phase: str = "Running", namespace: str = "kube-system") -> Object:
    """The DaemonSet's pod of a node."""
    labels = {"app.kubernetes.io/name": "k8snet-trace"}
    return {
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": f"agent-{node_name}", "labels": labels},
        "spec": {"nodeName": node_name, "containers": [{"name": "k8snet-trace", "image": "k8snet-trace"}]},
        "status": {"phase": phase},
    }


@dataclass(frozen=True)
class FakeCluster:
    """A cluster. directory: for its files; pods: what happens in which pod (fake_kubectl)."""

    directory: Path
    kubeconfig: Path
    kubectl: Path

    def run(
        self, pods: Mapping[str, Mapping[str, Any]], *options: str, seconds: float = 120, command: str = "trace"
    ) -> subprocess.CompletedProcess[str]:
        """Runs the plugin to its end. command: "" = the options are the whole command line."""
        return subprocess.run(
            self.command(*options, command=command), env=self.environment(pods), capture_output=True, text=True, timeout=seconds
        )

    def command(self, *options: str, command: str = "trace") -> list[str]:
        """The command line of the plugin."""
        program = [sys.executable, "-c", "from tracer.cli.cluster_plugin import main; main()"]
        access = ["--kubectl", str(self.kubectl), "--kubeconfig", str(self.kubeconfig)]
        return [*program, command, *access, *options] if command else [*program, *options]

    def environment(self, pods: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        log = str(self.directory / "commands")
        logged = {name: {"log": log, **what} for name, what in pods.items()}
        return os.environ | fake_kubectl.environment(logged) | {"PYTHONPATH": str(fake_kubectl.ROOT)}

    def commands(self) -> list[list[str]]:
        """The arguments of each kubectl so far."""
        log = self.directory / "commands"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@contextmanager
def cluster(directory: Path, objects: Iterable[Object]) -> Iterator[FakeCluster]:
    """A block with a cluster that has these objects."""
    with ApiServer(objects) as api:
        config = directory / "config"
        server = {"cluster": {"server": f"http://127.0.0.1:{api.port}"}, "name": "test"}
        context = {"context": {"cluster": "test"}, "name": "test"}
        config.write_text(json.dumps({"current-context": "test", "contexts": [context], "clusters": [server]}))
        yield FakeCluster(directory, config, fake_kubectl.write(directory))
