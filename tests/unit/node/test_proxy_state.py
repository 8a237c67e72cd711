# SPDX-License-Identifier: Apache-2.0
"""Which processes of kube-proxy run, are stopped, or hold up the writing of its rules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracer.node import proxy_state
from tracer.node.node import HostReader
from tracer.node.proxy_state import ProxyState, read


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc of the machine's first PID namespace, without kube-proxy."""
    for pid in ("1", "self"):
        (tmp_path / pid / "ns").mkdir(parents=True)
    for name in ("net", "user"):
        (tmp_path / "1/ns" / name).touch()
    (tmp_path / "self/ns/pid").touch()
    monkeypatch.setattr(proxy_state, "FIRST_PID_NAMESPACE", (tmp_path / "self/ns/pid").stat().st_ino)
    process(tmp_path, 50, "sshd", "/usr/sbin/sshd")
    return tmp_path


def process(proc: Path, pid: int, name: str, *arguments: str, state: str = "S", uid: int = 0) -> None:
    folder = proc / str(pid)
    (folder / "ns").mkdir(parents=True)
    for space in ("net", "user"):
        os.link(proc / "1/ns" / space, folder / "ns" / space)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "stat").write_text(f"{pid} ({name}) {state} 1 1\n")
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{(1 << 41) - 1:016x}\n")
    (folder / "cmdline").write_bytes(b"".join(a.encode() + b"\0" for a in arguments))


def test_none(proc: Path, tmp_path: Path) -> None:
    assert read(proc, tmp_path) == ProxyState() == HostReader(proc, tmp_path).proxy_state()


@pytest.mark.parametrize(
    ("state", "expected"),
    [("S", ProxyState((77,))), ("R", ProxyState((77,))), ("D", ProxyState((77,))), ("T", ProxyState((), (77,))),
     ("t", ProxyState((), (77,))), ("Z", ProxyState()), ("X", ProxyState())],
)  # fmt: skip
def test_the_state_of_the_process(state: str, expected: ProxyState, proc: Path, tmp_path: Path) -> None:
    process(proc, 77, "kube-proxy", "/usr/local/bin/kube-proxy", "--v=2", state=state)
    assert read(proc, tmp_path) == expected


def test_a_name_with_the_characters_of_a_state(proc: Path, tmp_path: Path) -> None:
    process(proc, 77, "kube-proxy) T ", "kube-proxy", state="S")
    assert read(proc, tmp_path) == ProxyState((77,))


@pytest.mark.parametrize(
    ("name", "arguments", "uid"),
    [("k3s-server", ("/usr/local/bin/k3s", "server"), 0), ("kubelite", ("/snap/microk8s/kubelite",), 0),
     ("kube-proxy", ("kube-proxy",), 1000), ("openshift-sdn-n", ("openshift-sdn-node",), 0)],
)  # fmt: skip
def test_a_process_that_may_do_its_work(name: str, arguments: tuple[str, ...], uid: int, proc: Path, tmp_path: Path) -> None:
    process(proc, 78, name, *arguments, uid=uid)
    assert read(proc, tmp_path) is None


def test_processes_that_cannot_be_seen(proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_state, "FIRST_PID_NAMESPACE", 1)
    assert read(proc, tmp_path) is None, "in a container with processes of its own"
    assert read(tmp_path / "nothing", tmp_path) is None


def test_many_are_not_all_named(proc: Path, tmp_path: Path) -> None:
    for pid in range(100, 112):
        process(proc, pid, "kube-proxy", "kube-proxy")
    found = read(proc, tmp_path)
    assert found and len(found.running) == proxy_state.MOST_PROCESSES


def test_the_holder_of_the_lock(proc: Path, tmp_path: Path) -> None:
    lock = tmp_path / "xtables.lock"
    lock.touch()
    found = lock.stat()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    rows = [
        f"1: FLOCK  ADVISORY  WRITE 901 {place}:{found.st_ino + 1} 0 EOF",
        f"2: POSIX  ADVISORY  WRITE 902 {place}:{found.st_ino} 0 EOF",
        f"3: FLOCK  ADVISORY  WRITE 903 {place}:{found.st_ino} 0 EOF",
        f"3: -> FLOCK  ADVISORY  WRITE 904 {place}:{found.st_ino} 0 EOF",
    ]
    (proc / "locks").write_text("".join(f"{row}\n" for row in rows))
    assert read(proc, tmp_path) == ProxyState((), (), 903)
    (proc / "locks").write_text("damaged\n")
    assert read(proc, tmp_path) == ProxyState()


def test_a_real_lock(tmp_path: Path) -> None:
    """The kernel writes the device as this module does."""
    import fcntl

    with (tmp_path / "xtables.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert proxy_state._lock_holder(Path("/proc"), tmp_path) in (os.getpid(), 0)
        if (tmp_path / "xtables.lock").stat().st_dev >> 8:
            assert proxy_state._lock_holder(Path("/proc"), tmp_path) == os.getpid()
