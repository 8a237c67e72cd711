# SPDX-License-Identifier: Apache-2.0
"""Commands that read a capture ask the machine nothing: no API, no kernel, no program, no file beside the capture.

Two observers: Python's audit events (tests/support/alone.py), and strace where it is installed, which also sees the calls of
libraries.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.alone import OF_LIBRARIES, PROGRAM, roots
from tracer import export
from tracer.cli.main import command

REAL = PROGRAM / "tests/data/real"
READERS = {"trace", "top", "ui", "stats", "findings", "diff", "query", "export", "store"}
"""The commands that read a capture; `trace`, `top` and `ui` with -r."""
OTHERS = {"doctor", "audit", "explain", "record"}
"""The commands that look at the machine."""
STORES = {"recall", "compact"}
"""The commands on a store, of which the URL may be on the network. No capture is read."""
STREAMS = {"agent"}
"""The command that writes frames for another program; with -r it runs what `trace` runs."""
ITS_OWN = (
    "/etc/ld.so.cache", "/etc/localtime", "/usr/share/locale", "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo",
    "/proc/stat", "/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu", "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage", "/sys/kernel/mm/hugepages", "/etc/ssl/openssl.cnf",
)  # fmt: skip
"""Files that the C library, libcrypto, numpy, DuckDB and Arrow open: time zone, number of processors, memory size."""
HEADLESS = {"TEXTUAL_DRIVER": "textual.drivers.headless_driver:HeadlessDriver", "TEXTUAL_PRESS": "wait:1000,q"}
"""Textual's own settings: `ui` without a terminal, left with a key after one second."""
CALLS = "network,execve,execveat,open,openat,openat2,creat"


@dataclass
class Api:
    """A listener on loopback; every kubeconfig here has its address. place: the directory of the files."""

    place: Path
    socket: socket.socket

    @property
    def environment(self) -> dict[str, str]:
        host, port = self.socket.getsockname()
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}], "users": [{"name": "me", "user": {}}],
            "clusters": [{"name": "it", "cluster": {"server": f"http://{host}:{port}"}}],
        }  # fmt: skip
        home = self.place / "home"
        (home / ".kube").mkdir(parents=True, exist_ok=True)
        for path in (self.place / "kubeconfig", home / ".kube/config"):
            path.write_text(json.dumps(config))
        return os.environ | {
            "KUBECONFIG": str(self.place / "kubeconfig"), "HOME": str(home), "KUBERNETES_SERVICE_HOST": str(host),
            "KUBERNETES_SERVICE_PORT": str(port), "PYTHONDONTWRITEBYTECODE": "1", "NODE_NAME": "worker-7",
            "XDG_CACHE_HOME": str(home / ".cache"), **HEADLESS,
        }  # fmt: skip

    def connections(self) -> int:
        """Number of connections that have arrived."""
        self.socket.setblocking(False)
        count = 0
        while True:
            try:
                self.socket.accept()[0].close()
                count += 1
            except BlockingIOError:
                return count


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Api(tmp_path, listener)


def commands(place: Path) -> list[list[str]]:
    """Every command that reads a capture. J was made with --service, so its replay selects by objects; I has other options."""
    one, other = str(place / "J.k8st"), str(place / "I.k8st")
    for path in (one, other):
        Path(path).write_bytes(lzma.decompress((REAL / f"{Path(path).name}.xz").read_bytes()))
    made = [
        ["-r", one], ["-r", one, "-v"], ["-r", one, "-o", "json"], ["-r", one, "--follow"], ["-r", one, "--drops-only"],
        ["-r", one, "--service", "db/pg-main"], ["-r", one, "--pod", "db/pg-hp", "--no-rules"],
        ["-r", one, "--node-port", "31555"], ["-r", one, "--iface", "ens5", "--netns", "node"],
        ["stats", one], ["stats", one, "-o", "json"], ["findings", one], ["findings", one, "-o", "json"],
        ["ui", "-r", one],
        ["store", one, (place / "store").as_uri()],
        ["diff", one, other], ["query", one, "SELECT count(*) FROM hops"], ["top", "-r", one], ["top", "-r", one, "-o", "json"],
    ]  # fmt: skip
    for form in sorted(export.names()):
        made.append(["export", one, "--to", form, str(place / f"out.{form}")])
        made.append(["export", one, "--to", form, str(place / f"redacted.{form}"), "--redact"])
    return made


def run(api: Api, *before: str) -> dict[str, Any]:
    """Runs all commands, returns their questions. before: the program that starts them, with its options."""
    words = [*before, sys.executable, "-m", "tests.support.alone", json.dumps(commands(api.place)), str(api.place), "/tmp"]
    done = subprocess.run(words, cwd=PROGRAM, env=api.environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_command_either_reads_a_capture_or_looks_at_the_machine() -> None:
    known = READERS | OTHERS | STREAMS | STORES
    assert set(command.commands) == known, "add a new command to one of these lists, and to the test below"


def test_reading_a_capture_asks_the_machine_nothing(api: Api) -> None:
    strace, log = shutil.which("strace"), api.place / "calls"
    found = run(api, *((strace, "-f", "-qq", "-o", str(log), "-e", f"trace={CALLS}") if strace else ()))
    statuses = {" ".join(one["command"]): (one["status"], one["err"]) for one in found["results"]}
    assert {words: status for words, status in statuses.items() if status[0] not in (0, 1, 10)} == {}
    assert {words.split()[0] for words in statuses} == {"-r", *READERS - {"trace"}}
    assert api.connections() == 0
    assert found["requests"] == []
    assert found["opened"] == []
    if strace:
        assert calls(log, (*roots(), *OF_LIBRARIES, *ITS_OWN, "/tmp", str(api.place))) == []


def calls(log: Path, allowed: tuple[str, ...]) -> list[str]:
    """System calls that ask the machine: network calls, a second program, a file outside the allowed ones.

    A pair of connected sockets, which asyncio makes for itself, reaches nothing outside the process.
    """
    pairs: set[str] = set()
    found, programs = [], 0
    for line in log.read_text(errors="replace").splitlines():
        line = line.partition(" ")[2].lstrip()
        name = line.partition("(")[0]
        if " = -1 " in line or line.startswith(("<", "+++", "---")):
            continue
        if pair := re.match(r"socketpair\(AF_UNIX,.*\[(\d+), (\d+)\]\)", line):
            pairs.update(pair.groups())
            continue
        if line.partition("(")[2].partition(",")[0] in pairs:
            continue
        if name.startswith("execve"):
            programs += 1
        elif name in ("open", "openat", "openat2", "creat"):
            path = re.search(r'"((?:[^"\\]|\\.)*)"', line)
            absolute = path and path[1].startswith("/")
            if path and absolute and not any(path[1] == a or path[1].startswith(a.rstrip("/") + "/") for a in allowed):
                found.append(line[:160])
        else:
            found.append(line[:160])
    return found + ["another program was started"] * (programs > 1)
