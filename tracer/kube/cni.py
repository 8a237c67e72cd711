"""Which pod a container id belongs to, from libcni's result cache: no API and no container runtime is asked.

libcni (of containerd, CRI-O, podman) writes a file NETWORK-CONTAINERID-INTERFACE for each container it has connected, JSON of
kind cniCacheV1, with the pod's namespace and name among the arguments. Source: containernetworking/cni, libcni/api.go.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from tracer.kube.model import HostPort
from tracer.kube.names import portmap_chain

DIRECTORIES = (Path("/var/lib/cni/results"), Path("/var/lib/cni/cache/results"))

LOOK_SECONDS = 1.0
"""libcni writes its file after the plugin has written its rules, so a first look can come too early."""


@dataclass(frozen=True)
class Sandbox:
    """A pod's network as a CNI plugin made it. container: the id of the pod's sandbox. addresses: without their prefix."""

    container: str
    network: str
    namespace: str
    name: str
    addresses: tuple[str, ...] = ()
    host_ports: tuple[HostPort, ...] = ()


class Cache:
    """The result cache in memory; a container that is not in it makes it look again, but not more often than LOOK_SECONDS.

    of(container), of_chain(portmap's CNI-DN- chain) and at(address) are dictionary look-ups.
    """

    def __init__(self, directories: tuple[Path, ...] = DIRECTORIES) -> None:
        self._directories = directories
        self._files: set[Path] = set()
        self._of: dict[str, Sandbox] = {}
        self._of_chain: dict[str, Sandbox] = {}
        self._looked = 0.0
        self._look()

    def of(self, container: str) -> Sandbox | None:
        return self._find(self._of, container)

    def of_chain(self, chain: str) -> Sandbox | None:
        return self._find(self._of_chain, chain)

    def at(self, address: str) -> Sandbox | None:
        """Who has the address. Two files of one address are no answer: the older may be left from a pod that is gone."""
        found = [s for s in self._of.values() if address in s.addresses]
        return found[0] if len(found) == 1 else None

    def host_port(self, port: int, protocol: str) -> list[Sandbox]:
        """Whose host port it is."""
        return [s for s in self._of.values() if any((h.port, h.protocol) == (port, protocol) for h in s.host_ports)]

    def addresses(self, namespace: str, name: str) -> list[str]:
        """The addresses of a pod's network."""
        return [a for s in self._of.values() if (s.namespace, s.name) == (namespace, name) for a in s.addresses]

    def _find(self, index: dict[str, Sandbox], key: str) -> Sandbox | None:
        if key not in index and time.monotonic() - self._looked > LOOK_SECONDS:
            self._look()
        return index.get(key)

    def _look(self) -> None:
        self._looked = time.monotonic()
        for directory in self._directories:
            try:
                paths = [p for p in directory.iterdir() if p not in self._files]
            except OSError:
                continue
            for path in paths:
                self._files.add(path)
                found = read(path)
                if found:
                    self._of[found.container] = found
                    self._of_chain[portmap_chain(found.network, found.container)] = found


def read(path: Path) -> Sandbox | None:
    """One file of the cache; None when it is none, or names no pod."""
    try:
        body = json.loads(path.read_bytes())
        if body.get("kind") != "cniCacheV1":
            return None
        args = {name: value for name, value in body.get("cniArgs") or ()}
        namespace, name = args["K8S_POD_NAMESPACE"], args["K8S_POD_NAME"]
        ips = (body.get("result") or {}).get("ips") or ()
        mappings = (body.get("capabilityArgs") or {}).get("portMappings") or ()
        ports = tuple(
            HostPort(int(m["hostPort"]), int(m["containerPort"]), m.get("protocol", "tcp").lower(), m.get("hostIP", ""))
            for m in mappings
        )
        addresses = tuple(ip["address"].partition("/")[0] for ip in ips)
        return Sandbox(body["containerId"], body["networkName"], namespace, name, addresses, ports)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
