# SPDX-License-Identifier: Apache-2.0
"""The node name of kube-proxy: an endpoint is local for it if the endpoint's nodeName equals this name.

Source: kubernetes cmd/kube-proxy/app/server.go: hostnameOverride of the file given by --config, else --hostname-override, else
the host name in lower case. With --config, only some versions use --hostname-override; then both names are possible.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracer.node import host_process
from tracer.util import untrusted_file

PROGRAMS = ("kube-proxy", "hyperkube")
"""File names of kube-proxy."""
WITH_KUBE_PROXY = ("k3s", "rke2")
"""File names of programs that include kube-proxy."""
FLAG, BY_HOST, KEY = "--hostname-override", "the host name", "hostnameOverride"
"""Sources of kube-proxy's node name: its flag, the host name as default, a key of its configuration file."""

_OVERRIDE = re.compile(
    r"""^hostnameOverride:[ \t]*+(?:"([^"\n]*+)"|'([^'\n]*+)'|([^\s#"']*+))[ \t]*+(?:#.*)?$"""
    r"""|"hostnameOverride"\s*+:\s*+"([^"]*)\"""",
    re.MULTILINE,
)


@dataclass(frozen=True)
class KubeProxy:
    """The running kube-proxy. names: possible node names, each with its source."""

    pid: int
    names: tuple[tuple[str, str], ...]

    @property
    def by_file(self) -> bool | None:
        """Whether it has a configuration file, which has precedence for the node name; None = not known."""
        sources = [source for _, source in self.names]
        if all(source in (FLAG, BY_HOST) for source in sources):
            # No name is known only if there is a file that cannot be read.
            return not sources
        return True if any(KEY in source for source in sources) else None


def running(proc: Path = Path("/proc")) -> KubeProxy | None:
    """The kube-proxy that runs here; None = none found, or more than one.

    A process can set its own name. Only a trusted process (host_process.py) counts as kube-proxy, so no other process can be
    mistaken for it or make the result ambiguous.
    """
    found = []
    for name in proc.iterdir():
        if name.name.isdigit():
            with host_process.opened(proc, int(name.name)) as process:
                arguments = host_process.arguments(process)
                if is_kube_proxy(arguments):
                    found.append(KubeProxy(int(name.name), tuple(_names_of(process, arguments, _host_name(proc)))))
    return found[0] if len(found) == 1 else None


def is_kube_proxy(arguments: Sequence[str]) -> bool:
    """Whether a command line is that of kube-proxy."""
    program = Path(arguments[0]).name if arguments else ""
    return program in PROGRAMS and (program == "kube-proxy" or "proxy" in arguments or "kube-proxy" in arguments)


def has_kube_proxy(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process of the node is kube-proxy or includes it."""
    with host_process.opened(proc, pid) as process:
        arguments = host_process.arguments(process)
    return is_kube_proxy(arguments) or (bool(arguments) and Path(arguments[0].split(" ")[0]).name in WITH_KUBE_PROXY)


def _host_name(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/hostname").read_text(encoding="utf-8").strip().lower()
    except OSError:
        return ""


def _names_of(process: int, arguments: Sequence[str], host: str) -> list[tuple[str, str]]:
    """As `names`, for an open directory of /proc. [] = --config is given, and the process's root directory cannot be opened."""
    try:
        root = untrusted_file.directory("root", process)
    except OSError:
        return [] if option(arguments, "config") else names(arguments, -1, host)
    try:
        return names(arguments, root, host)
    finally:
        os.close(root)


def names(arguments: Sequence[str], root: int, host: str) -> list[tuple[str, str]]:
    """(node name, source) of each possible node name. root: descriptor of the process's root directory."""
    override, config = option(arguments, "hostname-override").lower(), option(arguments, "config")
    by_host = (host, BY_HOST)
    if not config:
        return [(override, FLAG)] if override else [by_host]
    configured = _override_in(config, root)
    if configured is None:
        return []
    first = (configured.lower(), f"{KEY} in {config}") if configured else (host, f"{BY_HOST}, for {config} has no {KEY}")
    if not override or override == first[0]:
        return [first]
    return [first, (override, f"{FLAG}, which is not heeded by every version when --config is given")]


def option(arguments: Sequence[str], name: str) -> str:
    """The last value of --name VALUE or --name=VALUE; "" = not given."""
    value = ""
    for at, word in enumerate(arguments):
        if word == f"--{name}" and at + 1 < len(arguments):
            value = arguments[at + 1]
        elif word.startswith(f"--{name}="):
            value = word.partition("=")[2]
    return value


def _override_in(path: str, root: int) -> str | None:
    """hostnameOverride of a configuration file; "" = not set; None = the file cannot be read, or is not kube-proxy's.

    A relative path starts at a directory that is not known here. The key is searched in the forms of kubeadm, kops and
    hand-written files: YAML or JSON, at the left margin or in braces.
    """
    if not path.startswith("/"):
        return None
    try:
        text = untrusted_file.read(path, root=root).decode()
    except (OSError, ValueError):
        return None
    if "KubeProxyConfiguration" not in text:
        return None
    found = _OVERRIDE.search(text)
    return next((g for g in found.groups() if g is not None), "") if found else ""
