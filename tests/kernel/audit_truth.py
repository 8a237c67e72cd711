# SPDX-License-Identifier: Apache-2.0
"""Compares certain findings of `audit` and outcomes of `explain` with real requests, on random nodes in throw-away namespaces
of a real kernel. As root:

    python3 tests/kernel/audit_truth.py --nodes 200

No probe is attached. The last line is nodes=… requests=… wrong=… undecided=…; the exit status is 0 when nothing is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from scenes.netns import CLONE_NEWNET, Child, entered  # noqa: E402
from tests.kernel import audit_claims, audit_nodes, modules, real_plans  # noqa: E402
from tests.kernel.audit_nodes import HOSTED, LOCAL, PORT  # noqa: E402
from tracer.audit import checks  # noqa: E402
from tracer.kube.owners import finders  # noqa: E402

INSIDE = "K8SNET_AUDIT_TRUTH"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first node; the others follow")
    parser.add_argument("--timeout", type=float, default=0.4, help="seconds that a request waits for an answer")
    parser.add_argument("--beside", type=int, default=12, help="number of requests at a time")
    parser.add_argument("--real", action="store_true", help="with rules of the real kube-proxy and the real portmap")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        names = "br_netfilter nft_numgen nft_fib_ipv4 nft_masq nft_nat nft_reject_ipv4 veth"
        modules.load(f"{modules.RANDOM_RULES} {modules.INCIDENTS} {names}", anywhere=True)
        # Own namespaces, also for the names of namespaces: the machine itself is not changed.
        command = ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, *sys.argv]
        return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode
    return run(options)


def run(options: argparse.Namespace) -> int:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    Path("/run/netns").mkdir()
    _import_once()
    proc = _proc()
    servers = _start_servers()
    totals, certain = dict.fromkeys(("requests", "wrong", "undecided"), 0), Counter[str]()
    with_ipvs = Path("/proc/net/ip_vs").exists()
    try:
        for seed in range(options.seed, options.seed + options.nodes):
            result = _run_node(seed, with_ipvs, options, proc)
            for name in totals:
                value = result[name]
                totals[name] += len(value) if isinstance(value, list) else value
            certain.update(result["certain"])
            if result["wrong"] or options.verbose:
                print(result["text"], f"({result['seconds']:.1f} s)", flush=True)
                print(*(f"    {line}" for line in result["wrong"]), sep="\n", flush=True)
    finally:
        for server in servers:
            server.kill()
    print("IPVS:", "yes" if with_ipvs else "not on this kernel")
    print("certain findings:", ", ".join(f"{count} {name}" for name, count in certain.most_common()))
    print(f"nodes={options.nodes} " + " ".join(f"{name}={value}" for name, value in totals.items()))
    return 1 if totals["wrong"] else 0


def _import_once() -> None:
    """Imports the modules that each node's process would otherwise import: half of its processor time, many seconds on an
    emulated processor."""
    checks()
    finders()
    for name in ("pyroute2", "tracer.rules.ipset", "tracer.rules.ipvs.netlink", "tracer.kube.attribution"):
        importlib.import_module(name)


def _proc() -> Path:
    """A directory like /proc without the machine's process 1: sockets are read from our own namespace."""
    found = Path(tempfile.mkdtemp(dir="/run"))
    for name in ("self", "sys"):
        (found / name).symlink_to(f"/proc/{name}")
    return found


def _start_servers() -> list[Child[None]]:
    """Makes the namespaces that all nodes use, and starts the servers in them."""
    found = []
    for name in ("client", *LOCAL, "far"):
        subprocess.run(["ip", "netns", "add", name], check=True)
        if name != "client":
            port = HOSTED if name == "pod-d" else PORT
            with entered(name):
                sock = _listen(port)
            found.append(Child(name, partial(_answer, [sock], name), comm=f"scene-{name}", keep=[sock.fileno()]))
            sock.close()
    return found


def _listen(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("0.0.0.0", port))
    sock.listen(64)
    return sock


def _answer(socks: list[socket.socket], name: str) -> None:
    """Answers each connection with the name of the server and the address of the client."""
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                taken, (address, _) = key.fileobj.accept()  # type: ignore[union-attr]
                with taken:
                    taken.sendall(f"{name}\t{address}".encode())


def _run_node(seed: int, with_ipvs: bool, options: argparse.Namespace, proc: Path) -> dict[str, Any]:
    """The result of one node. It is built in a child process with its own network namespace, which ends with the process."""
    reading, writing = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            result = _run_in_namespace(seed, with_ipvs, options, proc)
        except BaseException:
            result = {"text": f"node {seed}", "requests": 0, "undecided": 0, "certain": [], "wrong": [traceback.format_exc()]}
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    died = {"text": f"node {seed}", "requests": 0, "undecided": 0, "certain": [], "wrong": ["its process died"]}
    found: dict[str, Any] = json.loads(text) if text else died
    return {**found, "seconds": time.monotonic() - began}


def _run_in_namespace(seed: int, with_ipvs: bool, options: argparse.Namespace, proc: Path) -> dict[str, Any]:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError("a network namespace cannot be made")
    made, mode = real_plans.plan(seed, with_ipvs) if options.real else (audit_nodes.plan(seed, with_ipvs), None)
    own = proc / str(os.getpid())
    try:
        audit_nodes.build()
        own.symlink_to(f"/proc/{os.getpid()}")
        socks = [_listen(port) for port in made.listens]
        threading.Thread(target=_answer, args=(socks, audit_claims.HERE), daemon=True).start()
        with real_plans.written(made, mode, proc) if mode else nullcontext():
            audit_nodes.put(made)
            claims = audit_claims.read_claims(made, audit_claims.state(made, proc))
            seen = audit_claims.send_all(made, options.timeout, options.beside)
            result = audit_claims.compare(made, seen, claims)
    finally:
        audit_nodes.remove()
        own.unlink(missing_ok=True)
    return result.__dict__


if __name__ == "__main__":
    sys.exit(main())
