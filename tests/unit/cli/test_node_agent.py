# SPDX-License-Identifier: Apache-2.0
"""The command `agent` and the options of the plugin: what each refuses, and what it has in common with `trace`."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from tests.support.fake_kubectl import ROOT
from tracer.cli import cluster_plugin, live_table, main
from tracer.commands.cluster import NODE_OPTIONS


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs the program; nothing is written to its input."""
    command = [sys.executable, "-m", "tracer", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["agent", "--follow", "-n", "3"], "agent without --stdio prints no packets: it cannot be combined with --follow, -n."),
        (["agent", "-r", "x.k8st", "--record"], "it cannot be combined with -r, --record."),
        (["agent", "--metrics", "localhost:80"], "--metrics 'localhost:80' is no ADDRESS:PORT: write an IP address and a port"),
        (["agent", "--label-sets", "0"], "--label-sets"),
        (["agent", "--snaplen", "9"], "need -w FILE."),
        (["agent", "--cpu", "0"], "'0' is no share of a processor of 0.1 % or more: write 2% or 150%."),
        (["agent", "--cpu", "two"], "'two' is no share of a processor"),
        (["agent", "--memory", "150"], "'150' is not a size of 100 kB or more"),
        (["agent", "--ring", "16M"], "--ring needs --dump."),
        (["agent", "--stdio", "--cpu", "2%"], "--cpu, --memory and --dump cannot be combined with --stdio"),
        (["agent", "--stdio", "--dump", "x"], "--cpu, --memory and --dump cannot be combined with --stdio"),
        (["agent", "--stdio", "--metrics", "127.0.0.1:0"], "--metrics cannot be combined with --stdio"),
        (["agent", "--stdio", "-r", "x.k8st", "--record"], "--record traces this node: it cannot be combined with -r."),
        (["agent", "--stdio", "-r", "x.k8st", "--duration", "3"], "it cannot be combined with --duration."),
        (["agent", "--stdio", "--snaplen", "9"], "need -w FILE."),
        (["agent", "--stdio", "--events"], "--events cannot be combined with --stdio: the client has the findings."),
        (["agent", "--stdio", "--otlp", "http://c"], "--otlp cannot be combined with --stdio: the client has the results."),
        (["agent", "--events", "--no-kube"], "--events needs the Kubernetes API: it cannot be combined with --no-kube"),
        (["agent", "--events", "--objects", "x"], "--events needs the Kubernetes API: it cannot be combined with --no-kube"),
    ],
)
def test_wrong_options_of_an_agent(words: list[str], sentence: str) -> None:
    done = run(*words)
    assert done.returncode == 2 and sentence in done.stderr and not done.stdout


def test_an_agent_without_a_client_ends() -> None:
    """Its input ends at once, so nothing is read."""
    done = run("agent", "--stdio", "-r", "no-such-file.k8st")
    assert done.returncode in (21, 28) and "Traceback" not in done.stderr


def test_each_option_of_a_node_is_passed_on_or_is_the_clients() -> None:
    agent = main.command.commands["agent"]
    options = {p.name: p for p in agent.params if isinstance(p, click.Option)}
    for name, option in NODE_OPTIONS.items():
        parameter = options["records" if name == "write" else name]
        assert option in parameter.opts, name
    own = {
        "nodes", "clients", "context", "kubeconfig", "namespace", "image", "kubectl", "write", "outputs", "oneline", "times",
        "count", "ring", "rotate_size", "rotate_time", "color", "debug", "help_all", "version",
    }  # fmt: skip
    for name, more in (("trace", set[str]()), ("top", set(live_table_options())), ("ui", set[str]())):
        params = cluster_plugin.command().commands[name].params
        plugin = {str(p.name) for p in params if isinstance(p, click.Option)}
        assert plugin - own - set(NODE_OPTIONS) == {"family"} | more, name


def live_table_options() -> list[str]:
    return [str(each.name) for each in live_table.own_options()]
