# SPDX-License-Identifier: Apache-2.0
"""Which pod a container id belongs to, from libcni's result cache: no API and no container runtime is asked.

libcni (of containerd, CRI-O, podman) writes a file NETWORK-CONTAINERID-INTERFACE for each container it has connected, JSON of
kind cniCacheV1, with the pod's namespace and name among the arguments. Source: containernetworking/cni, libcni/api.go.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tracer.kube.chain_names import portmap_chain
from tracer.model.kube import HostPort
from tracer.node.host_files import of_node
from tracer.util import untrusted_file
from tracer.util.multidict import MultiIndex

DIRECTORIES = ("/var/lib/cni/results", "/var/lib/cni/cache/results")

LOOK_SECONDS = 1.0
"""libcni writes its file after the plugin has written its rules, so a first look can come too early."""

MOST_FILES = 10_000
"""Files that are read; a node has some hundreds."""


@dataclass(frozen=True)
class Sandbox:
    """A pod's network as a CNI plugin made it. container: the id of the pod's sandbox. addresses: without their prefix."""

    container: str
    network: str
    namespace: str
    name: str
    addresses: tuple[str, ...] = ()
    host_ports: tuple[HostPort, ...] = ()


class CniCache:
    """The result cache in memory; a container that is not in it makes it look again, but not more often than LOOK_SECONDS.

    All questions are dictionary look-ups.
    """

    def __init__(self, directories: tuple[Path, ...] | None = None) -> None:
        """directories: None for the node's."""
        self._directories = tuple(map(of_node, DIRECTORIES)) if directories is None else directories
        self._files: dict[Path, Sandbox | None] = {}
        self._looked = 0.0
        self.left_out = False
        """Whether there were more than MOST_FILES."""
        self._look()

    def of(self, container: str) -> Sandbox | None:
        return self._one(("id", container))

    def of_chain(self, chain: str) -> Sandbox | None:
        return self._one(("chain", chain))

    def at(self, address: str) -> Sandbox | None:
        """Who has the address. Two files of one address are no answer: the older may be left from a pod that is gone."""
        return self._one(("address", address))

    def host_port(self, port: int, protocol: str) -> tuple[Sandbox, ...]:
        """Whose host port it is."""
        return self._find(("host port", f"{port}/{protocol}"))

    def addresses(self, namespace: str, name: str) -> list[str]:
        """The addresses of a pod's network."""
        return [a for s in self._find(("pod", f"{namespace}/{name}")) for a in s.addresses]

    def every(self) -> list[Sandbox]:
        """All that the cache has, as of the last look."""
        return [s for s in self._files.values() if s]

    def _one(self, key: tuple[str, str]) -> Sandbox | None:
        found = self._find(key)
        return found[0] if len(found) == 1 else None

    def _find(self, key: tuple[str, str]) -> tuple[Sandbox, ...]:
        found = self._by.all(key)
        if not found and self._directories and time.monotonic() - self._looked > LOOK_SECONDS:
            self._look()
            found = self._by.all(key)
        return found

    def _look(self) -> None:
        """Reads the files that are new, and forgets those that are gone."""
        self._looked = time.monotonic()
        there: list[Path] = []
        for directory in self._directories:
            with suppress(OSError):
                there += islice(directory.iterdir(), MOST_FILES + 1 - len(there))
        self.left_out = self.left_out or len(there) > MOST_FILES
        del there[MOST_FILES:]
        self._files = {path: self._files[path] if path in self._files else read(path) for path in there}
        self._by = self._index(filter(None, self._files.values()))

    @staticmethod
    def _index(sandboxes: Iterable[Sandbox]) -> MultiIndex[tuple[str, str], Sandbox]:
        by: MultiIndex[tuple[str, str], Sandbox] = MultiIndex()
        for one in sandboxes:
            by.add(("id", one.container), one)
            by.add(("chain", portmap_chain(one.network, one.container)), one)
            by.add(("pod", f"{one.namespace}/{one.name}"), one)
            for address in one.addresses:
                by.add(("address", address), one)
            for h in one.host_ports:
                by.add(("host port", f"{h.port}/{h.protocol}"), one)
        return by


def read(path: Path) -> Sandbox | None:
    """One file of the cache; None when it is none, names no pod, or others than root may have written it."""
    try:
        body = json.loads(untrusted_file.read(path, owners=untrusted_file.ours()))
        if body.get("kind") != "cniCacheV1":
            return None
        args = {_word(name): value for name, value in body.get("cniArgs") or ()}
        ips = (body.get("result") or {}).get("ips") or ()
        mappings = (body.get("capabilityArgs") or {}).get("portMappings") or ()
        ports = tuple(map(_port, mappings))
        addresses = tuple(_word(ip["address"]).partition("/")[0] for ip in ips)
        names = (body["containerId"], body["networkName"], args["K8S_POD_NAMESPACE"], args["K8S_POD_NAME"])
        container, network, namespace, name = map(_word, names)
        return Sandbox(container, network, namespace, name, addresses, ports)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _port(mapping: Any) -> HostPort:
    protocol, address = _word(mapping.get("protocol", "tcp")), _word(mapping.get("hostIP", ""))
    return HostPort(int(mapping["hostPort"]), int(mapping["containerPort"]), protocol.lower(), address)


def _word(value: Any) -> str:
    """A string, as it is. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(value)
    return value
