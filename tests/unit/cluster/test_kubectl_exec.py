# SPDX-License-Identifier: Apache-2.0
"""The real kubectl against the API server's double: `exec` over a WebSocket, and the objects that it prints."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import kubectl_binary
from tests.support.waiting import PATIENCE

pytest.importorskip("websockets", reason="websockets is not installed")
from tests.support.clusters import agent_pod, node
from tests.support.exec_api import ExecApi

KUBECTL = kubectl_binary.path()
pytestmark = pytest.mark.skipif(not KUBECTL, reason="kubectl is not installed")
POD = "agent-node-a"


@pytest.fixture
def api() -> Iterator[ExecApi]:
    with ExecApi() as server:
        server.replace([node("node-a"), agent_pod("node-a")])
        yield server


def command(api: ExecApi, folder: Path, *words: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    config = folder / "v1" / "config"
    return [KUBECTL, f"--kubeconfig={config if config.exists() else api.kubeconfig(folder)}", *words]


def kubectl(api: ExecApi, folder: Path, *words: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(api, folder, *words), input=text, capture_output=True, timeout=PATIENCE)


def in_pod(*argv: str) -> tuple[str, ...]:
    return ("exec", "-i", "-n", "kube-system", POD, "-c", "k8snet-trace", "--", *argv)


def test_kubectl_lists_the_objects(api: ExecApi, tmp_path: Path) -> None:
    done = kubectl(api, tmp_path, "get", "pods", "-n", "kube-system", "-o", "name")
    assert (done.stdout, done.returncode) == (b"pod/agent-node-a\n", 0), done.stderr
    assert kubectl(api, tmp_path, "get", "nodes", "-o", "name").stdout == b"node/node-a\n"
    api.put({"kind": "DaemonSet", "metadata": {"namespace": "kube-system", "name": "k8snet-trace"}})
    assert kubectl(api, tmp_path, "get", "ds", "-A", "-o", "name").stdout == b"daemonset.apps/k8snet-trace\n"


def test_the_end_of_the_input_ends_a_command(api: ExecApi, tmp_path: Path) -> None:
    done = kubectl(api, tmp_path, *in_pod("cat"), text=b"one\ntwo\n")
    assert (done.stdout, done.stderr, done.returncode) == (b"one\ntwo\n", b"", 0)


def test_bytes_of_every_value_come_back(api: ExecApi, tmp_path: Path) -> None:
    every = bytes(range(256)) * 8192
    done = kubectl(api, tmp_path, *in_pod("cat"), text=every)
    assert done.stdout == every and done.returncode == 0, done.stderr[-500:]


def test_the_exit_status_and_standard_error(api: ExecApi, tmp_path: Path) -> None:
    done = kubectl(api, tmp_path, *in_pod("sh", "-c", "echo no >&2; exit 3"))
    assert done.returncode == 3 and done.stdout == b""
    assert done.stderr.startswith(b"no\n") and b"exit code 3" in done.stderr


def test_a_program_that_does_not_exist(api: ExecApi, tmp_path: Path) -> None:
    done = kubectl(api, tmp_path, *in_pod("/no/such/program"))
    assert done.returncode == 1 and b"No such file" in done.stderr


def test_a_pod_that_does_not_exist(api: ExecApi, tmp_path: Path) -> None:
    done = kubectl(api, tmp_path, "exec", "-n", "kube-system", "nothing", "--", "true")
    assert done.returncode == 1 and b'"nothing" not found' in done.stderr


def test_a_stream_that_is_cut_is_no_success(api: ExecApi, tmp_path: Path) -> None:
    api.cuts[POD] = 100
    done = kubectl(api, tmp_path, *in_pod("sh", "-c", f"{sys.executable} -c 'print(\"x\" * 5000)'; sleep 60"))
    assert done.returncode == 1 and done.stdout == b"x" * 100 and done.stderr


def test_a_client_that_is_killed_ends_the_input(api: ExecApi, tmp_path: Path) -> None:
    note = tmp_path / "note"
    words = in_pod("sh", "-c", f"echo on; cat; echo ended > {note}")
    with subprocess.Popen(command(api, tmp_path, *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdout and client.stdout.readline() == b"on\n"
        client.kill()
    until = time.monotonic() + PATIENCE
    while not note.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert note.exists()
