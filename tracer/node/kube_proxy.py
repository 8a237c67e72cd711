# SPDX-License-Identifier: Apache-2.0
"""Which name the kube-proxy of this node goes by: it calls an endpoint local when the endpoint's nodeName is exactly that.

Source: kubernetes cmd/kube-proxy/app/server.go: hostnameOverride of the file given by --config, else --hostname-override, else
the host name in lower case. With --config, versions differ in whether they heed --hostname-override; then both are possible.
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
"""Programs that are kube-proxy, by the name of their file."""
WITH_KUBE_PROXY = ("k3s", "rke2")
"""Programs that have kube-proxy in them."""
FLAG, BY_HOST, KEY = "--hostname-override", "the host name", "hostnameOverride"
"""Sources of kube-proxy's name: its flag, the host name where nothing else is given, a key of its configuration file."""

_OVERRIDE = re.compile(
    r"""^hostnameOverride:[ \t]*+(?:"([^"\n]*+)"|'([^'\n]*+)'|([^\s#"']*+))[ \t]*+(?:#.*)?$"""
    r"""|"hostnameOverride"\s*+:\s*+"([^"]*)\"""",
    re.MULTILINE,
)


@dataclass(frozen=True)
class KubeProxy:
    """The running kube-proxy. names: those it may go by, each with where it comes from."""

    pid: int
    names: tuple[tuple[str, str], ...]

    @property
    def by_file(self) -> bool | None:
        """Whether it has a configuration file, whose name for the node comes first; None when that is not known."""
        sources = [source for _, source in self.names]
        if all(source in (FLAG, BY_HOST) for source in sources):
            # No name is known only where there is a file, and it cannot be read.
            return not sources
        return True if any(KEY in source for source in sources) else None


def running(proc: Path = Path("/proc")) -> KubeProxy | None:
    """The kube-proxy that runs here; None when none is seen, or several are.

    A process can give itself any name. Only one that may write the node's rules is kube-proxy (host_process.py), so no other
    can be taken for it, nor make the real one one of two.
    """
    found = []
    for name in proc.iterdir():
        if name.name.isdigit():
            with host_process.opened(proc, int(name.name)) as process:
                words = host_process.arguments(process)
                if is_kube_proxy(words):
                    found.append(KubeProxy(int(name.name), tuple(_names_of(process, words, _host_name(proc)))))
    return found[0] if len(found) == 1 else None


def is_kube_proxy(words: Sequence[str]) -> bool:
    """Whether a command line is kube-proxy's."""
    program = Path(words[0]).name if words else ""
    return program in PROGRAMS and (program == "kube-proxy" or "proxy" in words or "kube-proxy" in words)


def has_kube_proxy(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process of the node is kube-proxy, or has it in it."""
    with host_process.opened(proc, pid) as process:
        words = host_process.arguments(process)
    return is_kube_proxy(words) or (bool(words) and Path(words[0].split(" ")[0]).name in WITH_KUBE_PROXY)


def _host_name(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/hostname").read_text(encoding="utf-8").strip().lower()
    except OSError:
        return ""


def _names_of(process: int, words: Sequence[str], host: str) -> list[tuple[str, str]]:
    """As `names`, for an open directory of /proc. [] when what the process sees as / cannot be looked at."""
    try:
        root = untrusted_file.directory("root", process)
    except OSError:
        return [] if option(words, "config") else names(words, -1, host)
    try:
        return names(words, root, host)
    finally:
        os.close(root)


def names(words: Sequence[str], root: int, host: str) -> list[tuple[str, str]]:
    """(name, where it comes from) of each name that this command line may mean. root: descriptor of what it sees as /."""
    override, config = option(words, "hostname-override").lower(), option(words, "config")
    by_host = (host, BY_HOST)
    if not config:
        return [(override, FLAG)] if override else [by_host]
    told = _override_in(config, root)
    if told is None:
        return []
    first = (told.lower(), f"{KEY} in {config}") if told else (host, f"{BY_HOST}, for {config} has no {KEY}")
    if not override or override == first[0]:
        return [first]
    return [first, (override, f"{FLAG}, which is not heeded by every version when --config is given")]


def option(words: Sequence[str], name: str) -> str:
    """The value of --name VALUE or --name=VALUE, the last one; "" when it is not given."""
    value = ""
    for at, word in enumerate(words):
        if word == f"--{name}" and at + 1 < len(words):
            value = words[at + 1]
        elif word.startswith(f"--{name}="):
            value = word.partition("=")[2]
    return value


def _override_in(path: str, root: int) -> str | None:
    """hostnameOverride of a configuration file, "" when it is not set; None when the file cannot be read, or is another one.

    A path that does not begin with / counts from a directory that only the process knows. The one key is looked for as kubeadm,
    kops and people write it, in YAML or JSON, at the left margin or in braces.
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
