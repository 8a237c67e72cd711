# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a node with kube-proxy's rules, the tracer on it, and a client that makes requests.

Runs as root inside a virtual machine (`make demo` boots one). Every line below the head is real output of the real command; the
lines with a `$` show what the client does at the same time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "vagrant")]

from rich.console import Console  # noqa: E402

from scenes import scene, topology, traffic  # noqa: E402

HEAD = """\
[bold]k8snet-trace[/] on Linux {release}, rules as kube-proxy 1.36 writes them

  client                 node-1                                 pods
  {client} ──▶ {node}                           ┌─▶ a 10.244.0.11:8080
                     [bold]NodePort 30285[/]  default/http-proxy  ───┼─▶ b 10.244.0.12:8080
                                                            └─▶ c 10.244.0.13:8080
                     [bold]NodePort 30584[/]  default/lonely-web     [red]no endpoints[/]
"""
QUIET_SECONDS, LONGEST_SECONDS = 1.0, 15.0
"""Time without output after which the tracer's output counts as complete, and limit of the wait for that, s."""


def show_request(console: Console, command: str, answer: str) -> None:
    console.rule(f"[bold]client $[/] {command}   [dim]{answer}[/]", align="left", style="dim")


def main() -> int:
    console = Console(highlight=False)
    head = HEAD.format(release=os.uname().release, client=topology.CLIENT4, node=topology.NODE4)
    console.print(head, soft_wrap=True)
    console.print("[dim]building the node and compiling the probes; this is slow on an emulated machine ...[/]")
    with scene.scene(), tempfile.TemporaryDirectory() as directory:
        return watch(console, Path(directory))


def watch(console: Console, directory: Path) -> int:
    """Starts the tracer, makes the requests, ends the tracer; returns its exit status."""
    ready, out = directory / "ready", directory / "out"
    options = ["--port", "30285", "--port", "30584"]
    command = [sys.executable, "-m", "tracer", *options, "--ready-file", str(ready)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if console.is_terminal or os.environ.get("FORCE_COLOR"):
        environment["FORCE_COLOR"] = "1"
    console.print(f"\n[bold]node-1 #[/] k8snet-trace {' '.join(options)}")
    with out.open("wb") as sink, out.open("rb") as source:
        tracer = subprocess.Popen(command, stdout=sink, env=environment)
        while not ready.exists():
            if tracer.poll() is not None:
                return tracer.returncode
            time.sleep(0.1)

        def show() -> None:
            sys.stdout.flush()
            began = last = time.monotonic()
            printed = False
            while time.monotonic() - began < LONGEST_SECONDS and not (printed and time.monotonic() - last > QUIET_SECONDS):
                time.sleep(0.1)
                new = source.read()
                if new:
                    os.write(1, new)
                    printed, last = True, time.monotonic()

        for _ in range(2):
            reply = traffic.http_get(topology.NODE4, traffic.NODEPORT_HTTP)
            show_request(console, f"curl http://{topology.NODE4}:{traffic.NODEPORT_HTTP}/", reply.body or reply.outcome)
            show()
        reply = traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY)
        show_request(console, f"curl http://{topology.NODE4}:{traffic.NODEPORT_LONELY}/", f"connection {reply.outcome}")
        show()
        tracer.terminate()
        console.rule("[dim]Ctrl-C[/]", align="left", style="dim")
        status = tracer.wait()
        show()
    return status


if __name__ == "__main__":
    sys.exit(main())
