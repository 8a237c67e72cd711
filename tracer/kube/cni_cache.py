# SPDX-License-Identifier: Apache-2.0
"""Finds the pod of a container id in libcni's result cache, without the API and without the container runtime.

libcni (of containerd, CRI-O, podman) writes a file NETWORK-CONTAINERID-INTERFACE for each connected container: JSON of kind
cniCacheV1 with the pod's namespace and name in its arguments. Source: containernetworking/cni, libcni/api.go.
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

SCAN_INTERVAL_SECONDS = 1.0
"""Minimum time between two scans, s. libcni writes its file after the plugin's rules, so a first scan can be too early."""

MOST_FILES = 10_000
"""Maximum number of files that are read. A node has some hundreds."""


@dataclass(frozen=True)
class Sandbox:
    """A pod's network as a CNI plugin made it.

    Attributes:
        container: The id of the pod's sandbox.
        addresses: The pod's addresses, without prefix length.
    """

    container: str
    network: str
    namespace: str
    name: str
    addresses: tuple[str, ...] = ()
    host_ports: tuple[HostPort, ...] = ()


class CniCache:
    """The result cache in memory. All queries are dictionary look-ups.

    A miss scans the directories again, at most once in SCAN_INTERVAL_SECONDS.

    Attributes:
        lookups: Number of look-ups; a subclass begins again at 0 with each batch.
        version: Number of scans that changed the cache.
    """

    lookups = version = 0

    def __init__(self, directories: tuple[Path, ...] | None = None) -> None:
        """Scans the directories. directories: None = those of the node."""
        self._directories = tuple(map(of_node, DIRECTORIES)) if directories is None else directories
        self._files: dict[Path, Sandbox | None] = {}
        self._last_scan = 0.0
        self.left_out = False
        """Whether there were more than MOST_FILES."""
        self._scan()

    def of(self, container: str) -> Sandbox | None:
        return self._one(("id", container))

    def of_chain(self, chain: str) -> Sandbox | None:
        return self._one(("chain", chain))

    def at(self, address: str) -> Sandbox | None:
        """Returns the sandbox with this address. None if two files have it: one may be left over from a deleted pod."""
        return self._one(("address", address))

    def host_port(self, port: int, protocol: str) -> tuple[Sandbox, ...]:
        """Returns the sandboxes with this host port."""
        return self._find(("host port", f"{port}/{protocol}"))

    def has_host_port(self, port: int, protocol: str) -> bool:
        """Whether a sandbox has this host port, as of the last scan. Counts as no look-up."""
        return bool(self._by.all(("host port", f"{port}/{protocol}")))

    def addresses(self, namespace: str, name: str) -> list[str]:
        """Returns the addresses of a pod."""
        return [a for s in self._find(("pod", f"{namespace}/{name}")) for a in s.addresses]

    def every(self) -> list[Sandbox]:
        """Returns all sandboxes, as of the last scan."""
        return [s for s in self._files.values() if s]

    def _one(self, key: tuple[str, str]) -> Sandbox | None:
        found = self._find(key)
        return found[0] if len(found) == 1 else None

    def skip(self, lookups: int) -> bool:
        """Counts look-ups that would repeat earlier ones. Returns False, and counts none, if they could find something new."""
        if self._directories and time.monotonic() - self._last_scan > SCAN_INTERVAL_SECONDS:
            return False
        self.lookups += lookups
        return True

    def _find(self, key: tuple[str, str]) -> tuple[Sandbox, ...]:
        self.lookups += 1
        found = self._by.all(key)
        if not found and self._directories and time.monotonic() - self._last_scan > SCAN_INTERVAL_SECONDS:
            self._scan()
            found = self._by.all(key)
        return found

    def _scan(self) -> None:
        """Reads new files and removes the entries of deleted ones."""
        self._last_scan = time.monotonic()
        there: list[Path] = []
        for directory in self._directories:
            with suppress(OSError):
                there += islice(directory.iterdir(), MOST_FILES + 1 - len(there))
        self.left_out = self.left_out or len(there) > MOST_FILES
        del there[MOST_FILES:]
        before = self._files
        self._files = {path: before[path] if path in before else read(path) for path in there}
        self.version += self._files != before
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
    """Reads one file of the cache; None = not a cache file, without pod, or writable by others than root."""
    try:
        body = json.loads(untrusted_file.read(path, owners=untrusted_file.ours()))
        if body.get("kind") != "cniCacheV1":
            return None
        args = {_string(name): value for name, value in body.get("cniArgs") or ()}
        ips = (body.get("result") or {}).get("ips") or ()
        mappings = (body.get("capabilityArgs") or {}).get("portMappings") or ()
        ports = tuple(map(_port, mappings))
        addresses = tuple(_string(ip["address"]).partition("/")[0] for ip in ips)
        names = (body["containerId"], body["networkName"], args["K8S_POD_NAMESPACE"], args["K8S_POD_NAME"])
        container, network, namespace, name = map(_string, names)
        return Sandbox(container, network, namespace, name, addresses, ports)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _port(mapping: Any) -> HostPort:
    protocol, address = _string(mapping.get("protocol", "tcp")), _string(mapping.get("hostIP", ""))
    return HostPort(int(mapping["hostPort"]), int(mapping["containerPort"]), protocol.lower(), address)


def _string(value: Any) -> str:
    """Returns a string unchanged. Raises TypeError for any other type."""
    if not isinstance(value, str):
        raise TypeError(value)
    return value
