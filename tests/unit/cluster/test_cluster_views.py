# SPDX-License-Identifier: Apache-2.0
"""The views of several nodes on a terminal: `ui` and `top` of the plugin, and `ui` with captures."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import clusters, two_nodes
from tests.support.fake_kubectl import ROOT
from tests.support.pseudo_terminal import PseudoTerminal
from tracer.cluster.node_choice import MOST_NODES
from tracer.errors import BadOption, NoAgent, NoTerminal

SECONDS = 60.0


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return two_nodes.make(tmp_path_factory.mktemp("captures"))


def on_a_terminal(
    command: Sequence[str], environment: dict[str, str], texts: Sequence[str], keys: bytes = b"q"
) -> tuple[int, str]:
    """Runs a program on a terminal until it has shown these texts, and types keys. Returns its status and what it wrote."""
    terminal = PseudoTerminal()
    try:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=terminal.fd, stdout=terminal.fd, stderr=terminal.fd, start_new_session=True,
            env={**environment, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
        )  # fmt: skip
        try:
            wait(lambda: all(text in terminal.text for text in texts) or process.poll() is not None)
            terminal.type(keys)
            return process.wait(SECONDS), terminal.text
        finally:
            process.kill()
            process.wait()
    finally:
        terminal.close()


def wait(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)


def test_ui_of_all_nodes_on_a_terminal(paths: list[Path], tmp_path: Path) -> None:
    pods = {f"agent-{path.stem}": {"capture": str(path)} for path in paths}
    objects = [*two_nodes.OBJECTS, *map(clusters.agent_pod, two_nodes.NODES)]
    with clusters.cluster(tmp_path, objects) as cluster:
        command = cluster.command("--service", "shop/cart", "--from", "node/node-a", command="ui")
        status, text = on_a_terminal(command, cluster.environment(pods), ("2 nodes", "ended"))
        assert status == 0 and "Tracing 2 nodes" in text and "9 packets in" in text and "Traceback" not in text
        words = cluster.commands()[0]
    assert words[words.index("--stdio") + 1 :] == ["--service", "shop/cart"]


def test_top_of_all_nodes_on_a_terminal(paths: list[Path], tmp_path: Path) -> None:
    pods = {f"agent-{path.stem}": {"capture": str(path)} for path in paths}
    objects = [*two_nodes.OBJECTS, *map(clusters.agent_pod, two_nodes.NODES)]
    with clusters.cluster(tmp_path, objects) as cluster:
        command = cluster.command("--by", "node", command="top")
        status, text = on_a_terminal(command, cluster.environment(pods), ("top by node",))
    assert status == 0 and "Tracing 2 nodes: node-a, node-b." in text and "node-b" in text and "Traceback" not in text


def test_ui_of_captures_of_two_nodes(paths: list[Path]) -> None:
    words = [word for path in paths for word in ("-r", str(path))]
    status, text = on_a_terminal([sys.executable, "-m", "tracer", "ui", *words], {}, ("2 nodes", "5 packets"))
    assert status == 0 and "9 packets in" in text and "Traceback" not in text


def test_ui_without_a_traced_node_says_why(tmp_path: Path) -> None:
    objects = [*two_nodes.OBJECTS, *map(clusters.agent_pod, two_nodes.NODES)]
    pods = {f"agent-{name}": {"error": "forbidden", "status": 1} for name in two_nodes.NODES}
    with clusters.cluster(tmp_path, objects) as cluster:
        status, text = on_a_terminal(cluster.command(command="ui"), cluster.environment(pods), ("No node was traced",))
        assert status == NoAgent.status and "forbidden" in text and "Traceback" not in text
        done = cluster.run(pods, command="ui")
    assert done.returncode == NoTerminal.status and "ui needs a terminal" in done.stderr


@pytest.mark.parametrize("command", ["trace", "top"])
def test_more_nodes_than_one_stream_takes_are_refused(tmp_path: Path, command: str) -> None:
    names = [f"node-{number}" for number in range(MOST_NODES + 1)]
    with clusters.cluster(tmp_path, [*map(clusters.node, names), *map(clusters.agent_pod, names)]) as cluster:
        done = cluster.run({}, command=command)
        assert not cluster.commands()
    sentence = "201 nodes are too many for one stream, which takes 200: choose some with --node."
    assert done.returncode == BadOption.status and sentence in " ".join(done.stderr.split()) and not done.stdout
