# SPDX-License-Identifier: Apache-2.0
"""A program in place of kubectl: it runs an agent on this machine, which replays a capture, or it fails as kubectl can.

The environment variable FAKE_KUBECTL has JSON: for each pod, what happens there.

    {"agent-a": {"capture": "a.k8st"}}               the agent explains a capture
    {"agent-a": {"capture": "a.k8st", "cut": 5000}}  the stream ends after so many bytes
    {"agent-a": {"silent": true}}                    nothing is ever written
    {"agent-a": {"error": "text", "status": 1}}      kubectl fails with a text
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "FAKE_KUBECTL"
ROOT = Path(__file__).resolve().parents[2]


def write(directory: Path) -> Path:
    """Writes an executable file that runs this program."""
    path = directory / "kubectl"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.support.fake_kubectl "$@"\n')
    path.chmod(0o755)
    return path


def environment(pods: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The environment that says what happens in each pod."""
    return {VARIABLE: json.dumps(pods)}


def main(words: list[str]) -> int:
    """Runs as kubectl with these arguments; returns its exit status."""
    name = pod_of(words)
    wanted = json.loads(os.environ[VARIABLE]).get(name, {"error": f'pods "{name}" not found', "status": 1})
    if log := wanted.get("log"):
        with Path(log).open("a") as file:
            file.write(json.dumps(words) + "\n")
    if "error" in wanted:
        print(f"Error from server (NotFound): {wanted['error']}", file=sys.stderr)
        return int(wanted["status"])
    if wanted.get("silent"):
        time.sleep(600)
        return 0
    given = words[words.index("--stdio") + 1 :]
    if "--duration" in given:  # a capture has its own end
        del given[given.index("--duration") : given.index("--duration") + 2]
    command = [sys.executable, "-m", "tracer", "agent", "--stdio", "-r", wanted["capture"], *given]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE if "cut" in wanted else None) as agent:
        if agent.stdout:
            sys.stdout.buffer.write(agent.stdout.read(int(wanted["cut"])))
            sys.stdout.flush()
            agent.kill()
            print("error: unexpected EOF", file=sys.stderr)
            return 1
        return agent.wait()


def pod_of(words: list[str]) -> str:
    """The pod or the node of a command line."""
    if "debug" in words:
        return words[words.index("debug") + 1]
    return words[words.index("-n") + 2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
