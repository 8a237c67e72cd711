"""Which name the kube-proxy of this node goes by: it calls an endpoint local when the endpoint's nodeName is exactly that.

Source: kubernetes cmd/kube-proxy/app/server.go: hostnameOverride of the file given by --config, else --hostname-override, else
the host name in lower case. With --config, versions differ in whether they heed --hostname-override; then both are possible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("kube-proxy", "hyperkube")
"""Programs that are kube-proxy, by the name of their file."""

_OVERRIDE = re.compile(
    r"""^hostnameOverride:[ \t]*(?:"([^"\n]*)"|'([^'\n]*)'|([^\s#"']*))[ \t]*(?:#.*)?$|"hostnameOverride"\s*:\s*"([^"]*)\"""",
    re.MULTILINE,
)


@dataclass(frozen=True)
class KubeProxy:
    """The running kube-proxy. names: those it may go by, each with where it comes from."""

    pid: int
    names: tuple[tuple[str, str], ...]


def running(proc: Path = Path("/proc")) -> KubeProxy | None:
    """The kube-proxy that runs here; None when none is seen, or several are."""
    found = [pid for pid in (p.name for p in proc.iterdir()) if pid.isdigit() and is_kube_proxy(arguments(proc / pid))]
    if len(found) != 1:
        return None
    root = proc / found[0]
    return KubeProxy(int(found[0]), tuple(names(arguments(root), root / "root", _host_name(proc))))


def is_kube_proxy(words: Sequence[str]) -> bool:
    """Whether a command line is kube-proxy's."""
    program = Path(words[0]).name if words else ""
    return program in PROGRAMS and (program == "kube-proxy" or "proxy" in words or "kube-proxy" in words)


def arguments(process: Path) -> list[str]:
    """The command line of a process, from its directory in /proc; [] when it cannot be read."""
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _host_name(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/hostname").read_text(encoding="utf-8").strip().lower()
    except OSError:
        return ""


def names(words: Sequence[str], root: Path, host: str) -> list[tuple[str, str]]:
    """(name, where it comes from) of each name that this command line may mean. root: what the process sees as /."""
    override, config = option(words, "hostname-override").lower(), option(words, "config")
    by_host = (host, "the host name")
    if not config:
        return [(override, "--hostname-override")] if override else [by_host]
    told = _override_in(root / config.lstrip("/"))
    if told is None:
        return []
    first = (
        (told.lower(), f"hostnameOverride in {config}")
        if told
        else (host, f"the host name, for {config} has no hostnameOverride")
    )
    if not override or override == first[0]:
        return [first]
    return [first, (override, "--hostname-override, which is not heeded by every version when --config is given")]


def option(words: Sequence[str], name: str) -> str:
    """The value of --name VALUE or --name=VALUE, the last one; "" when it is not given."""
    value = ""
    for at, word in enumerate(words):
        if word == f"--{name}" and at + 1 < len(words):
            value = words[at + 1]
        elif word.startswith(f"--{name}="):
            value = word.partition("=")[2]
    return value


def _override_in(path: Path) -> str | None:
    """hostnameOverride of a configuration file, "" when it is not set; None when the file cannot be read, or is another one.

    The one key is looked for as kubeadm, kops and people write it, in YAML or JSON, at the left margin or in braces.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    if "KubeProxyConfiguration" not in text:
        return None
    found = _OVERRIDE.search(text)
    return next((g for g in found.groups() if g is not None), "") if found else ""
