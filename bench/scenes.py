# SPDX-License-Identifier: Apache-2.0
"""Records the scenes that bench/explain.py replays: requests to a NodePort, with rules in iptables-legacy and in iptables-nft.

Runs in the virtual machine, without throughput.flow() around it: each scene is built with servers that answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.beside import OURS, Tool, replayed, started
from incidents import objects
from scenes import rules, scene, traffic
from scenes.topology import NODE4, PODS

BACKENDS: dict[str, rules.Backend] = {"legacy": "legacy", "nftables": "nft"}
"""Name of the scene -> the program that loads its rules."""
REQUESTS = 8
"""Number of TCP requests and of UDP requests in a scene."""


def cluster() -> list[dict[str, Any]]:
    """The objects of the scene's Service, its endpoints and its node."""
    name, node = "default/http-proxy", "node-1"
    ends = [(pod.name, pod.addr4, node) for pod in PODS]
    return [
        objects.node(node, NODE4, "10.244.0.0/24"),
        objects.service(name, traffic.CLUSTER_IP_HTTP, 8080, traffic.NODEPORT_HTTP),
        objects.endpoints(name, ends, 8080),
        *(objects.pod(f"default/{pod.name}", pod.addr4, node, 8080) for pod in PODS),
    ]


def objects_file(path: Path, found: list[dict[str, Any]]) -> Path:
    """Writes objects as `--objects` reads them. Returns the path."""
    path.write_text(json.dumps({"kind": "List", "items": found}))
    return path


def record(name: str, directory: Path) -> dict[str, Any]:
    """Records one scene to DIRECTORY/NAME.k8st. Returns the start's seconds and CPU seconds."""
    target = directory / f"{name}.k8st"
    known = objects_file(directory / "objects.json", cluster())
    ports = [word for port in (traffic.NODEPORT_HTTP, traffic.NODEPORT_UDP) for word in ("--port", str(port))]
    tool = Tool(f"record {name}", (*OURS, "record", "--objects", str(known), *ports, str(target)), target, replayed)
    with scene.scene(backend=BACKENDS[name]), started(tool) as (_, start):
        for _ in range(REQUESTS):
            traffic.http_get()
            traffic.udp_ask()
    return {"start": start, "bytes": target.stat().st_size}


def run(directory: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Records all scenes."""
    found = {}
    for name in BACKENDS:
        found[name] = record(name, directory)
        report(f"recorded the scene {name}")
    return found
