# SPDX-License-Identifier: Apache-2.0
"""The processes that are accepted as the node's own: real ones, in real namespaces, with kube-proxy's name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import spaces
from tests.support.waiting import until
from tracer.node import host_process, kube_proxy

OWN = [os.stat(f"/proc/self/{name}").st_ino for name in host_process.NAMESPACES]


NAMED = "exec -a kube-proxy bash -c read -- "


@contextmanager
def named(*before: str, script: str = NAMED) -> Iterator[int]:
    """The pid of a process with the name kube-proxy. before: the command that starts it."""
    started = subprocess.Popen([*before, "bash", "-c", script], stdin=subprocess.PIPE)
    found: list[int] = []

    def is_running() -> bool:
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        found[:] = [pid for pid in (started.pid, *map(int, children)) if _arguments(pid).startswith(b"kube-proxy\0")]
        return bool(found)

    try:
        until(is_running)
        yield found[0]
    finally:
        started.kill()
        started.communicate()


def _arguments(pid: int) -> bytes:
    """The command line of a process; b"" when it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own namespaces take the place of process 1's, which may differ here."""
    monkeypatch.setattr(host_process, "_host_namespaces", lambda proc: OWN)


@pytest.mark.parametrize(
    ("before", "accepted"),
    [
        ("env", True),
        ("unshare --pid --fork --kill-child", True),
        ("unshare --mount", True),
        ("unshare --net", False),
        ("unshare --user --map-root-user", False),
        ("setpriv --reuid 65534 --clear-groups", False),
        ("setpriv --bounding-set=-net_admin --inh-caps=-all", False),
    ],
)
def test_which_process_is_accepted(home: None, before: str, accepted: bool) -> None:
    spaces.need(*before.split())
    with named(*before.split()) as pid:
        with host_process.opened(Path("/proc"), pid) as process:
            assert (process != host_process.NOBODY) == accepted
            assert bool(host_process.arguments(process)) == accepted
        assert kube_proxy.has_kube_proxy(pid) == accepted


def test_a_configuration_in_a_root_of_its_own(home: None, tmp_path: Path) -> None:
    """The process has another directory as its root; a link there to an absolute path stays inside."""
    spaces.need("unshare", "--mount")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/own").write_text("kind: KubeProxyConfiguration\nhostnameOverride: inside\n")
    (root / "etc/conf").symlink_to("/etc/own")
    (tmp_path / "host").write_text("kind: KubeProxyConfiguration\nhostnameOverride: outside\n")
    (root / "out").symlink_to(tmp_path / "host")
    os.mkfifo(root / "fifo")
    binds = " && ".join(
        f"mkdir -p {root}{name} && mount --rbind {name} {root}{name}" for name in ("/usr", "/bin", "/lib", "/lib64", "/proc")
    )
    for config, names in (("/etc/conf", ["inside"]), ("/out", []), ("/fifo", []), ("/proc/kmsg", []), ("/dev/zero", [])):
        script = f"{binds} && exec chroot {root} bash -c '{NAMED} --config={config}'"
        with named("unshare", "--mount", script=script) as pid, host_process.opened(Path("/proc"), pid) as process:
            arguments = host_process.arguments(process)
            assert [name for name, _ in kube_proxy._names_of(process, arguments, "host")] == names, config
