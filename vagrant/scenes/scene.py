# SPDX-License-Identifier: Apache-2.0
"""The whole scene as one context manager: the node, its rules, its servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scenes import rules, servers
from scenes.netns import entered
from scenes.topology import STATE_DIR, Node

_SETTINGS = STATE_DIR / "settings"


def up(
    *rulesets: str,
    backend: rules.Backend = "legacy",
    extra: Iterable[str] = (),
    serve: Sequence[servers.Server] = servers.POD_SERVERS,
) -> None:
    """Build the node with these rulesets ("http-proxy" and "http-proxy-v6" if none) and servers.

    It stays after this process ends; down() removes it. An earlier scene is removed first.
    """
    bare(serve)
    try:
        rules.restore(*(rulesets or ("http-proxy", "http-proxy-v6")), backend=backend, extra=extra)
    except BaseException:
        down()
        raise


def bare(serve: Sequence[servers.Server] = servers.POD_SERVERS) -> None:
    """Build the node and its servers, without any rule."""
    down()
    Node().up()
    try:
        servers.start(serve)
    except BaseException:
        down()
        raise


def down() -> None:
    """Remove servers, rules, connections, links and namespaces, also those of another process."""
    _restore_settings()
    Node().down()
    rules.flush()


def set_for_scene(name: str, value: str) -> None:
    """Sets a sysctl of the node until down(). name: its path, "net/ipv4/ip_forward"."""
    path, before = Path("/proc/sys", name), _SETTINGS / name.replace("/", ".")
    _SETTINGS.mkdir(parents=True, exist_ok=True)
    if not before.exists():
        before.write_text(path.read_text())
    path.write_text(f"{value}\n")


def set_in_namespace(name: str, value: str, ns: str) -> None:
    """Sets a sysctl of a namespace; it ends with the namespace."""
    with entered(ns):
        Path("/proc/sys", name).write_text(f"{value}\n")


def _restore_settings() -> None:
    for before in _SETTINGS.glob("*"):
        Path("/proc/sys", before.name.replace(".", "/")).write_text(before.read_text())
        before.unlink()


@contextmanager
def scene(
    *rulesets: str,
    backend: rules.Backend = "legacy",
    extra: Iterable[str] = (),
    serve: Sequence[servers.Server] = servers.POD_SERVERS,
) -> Iterator[None]:
    """Calls up() before the block and down() after it."""
    up(*rulesets, backend=backend, extra=extra, serve=serve)
    try:
        yield
    finally:
        down()
