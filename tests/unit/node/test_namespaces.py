# SPDX-License-Identifier: Apache-2.0
"""Names of namespaces, sockets and interfaces, on the machine that runs the tests."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE
from tracer.errors import BadOption
from tracer.model.namespace_name import HOST, in_netns, is_host
from tracer.node import namespaces, processes
from tracer.node.namespaces import Namespaces, interface_index, tracking
from tracer.node.processes import Processes

NODE, OWN, NAMELESS = 4026531840, 4026531841, 4026531842


def process_is_in(process: int | str, inode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a process into a namespace. inode 0: the namespace may not be read, as process 1's without root."""
    real, link = namespaces._inode, Path(f"/proc/{process}/ns/net")
    monkeypatch.setattr(namespaces, "_inode", lambda path: inode if path == link else real(path))


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of namespaces as `ip netns` keeps one; any file has an inode. The second directory does not exist."""
    (tmp_path / "pod-a").touch()
    (tmp_path / "pod-b").touch()
    monkeypatch.setattr(namespaces, "NAMED", (tmp_path, tmp_path / "missing"))
    process_is_in(1, NODE, monkeypatch)
    return tmp_path


@pytest.fixture
def few(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are two processes: the first one, and `held`, number 77, in a namespace without a name."""
    process_is_in(77, NAMELESS, monkeypatch)
    monkeypatch.setattr(namespaces, "_processes", lambda: iter([1, 77]))
    monkeypatch.setattr(namespaces, "_command", lambda pid: {1: "init", 77: "held"}[pid])


def test_the_node_has_its_name(named: Path) -> None:
    known = Namespaces()
    assert known.node == NODE
    assert known.name(NODE) == "node"
    assert known.find("node") == NODE
    assert known.find("pid:1") == NODE


@pytest.mark.usefixtures("few")
def test_a_node_that_may_not_be_read_is_not_any_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a filter 0 means any namespace, and in an event it means none."""
    process_is_in(1, 0, monkeypatch)
    known = Namespaces()
    assert (known.node, known.name(0)) == (0, "")
    for name in ("node", "0", "pid:1"):
        with pytest.raises(BadOption) as e:
            known.find(name)
        assert str(e.value) == f"There is no network namespace {name!r} (known: held[77], pod-a, pod-b)."


def test_this_processs_namespace_need_not_be_the_nodes(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Namespaces().own == Path("/proc/self/ns/net").stat().st_ino
    process_is_in("self", OWN, monkeypatch)
    known = Namespaces()
    assert (known.node, known.own) == (NODE, OWN)


def test_a_new_namespace_does_not_get_the_name_of_a_removed_one(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel uses the inode of a removed namespace again, often at once."""
    monkeypatch.setattr(namespaces, "CHECK_SECONDS", 0)
    known, inode = Namespaces(), (named / "pod-a").stat().st_ino
    assert known.name(inode) == "pod-a"
    (named / "pod-a").rename(named / "pod-c")  # another file with this inode
    assert known.name(inode) == "pod-c"


@pytest.mark.usefixtures("few")
def test_a_named_namespace_does_not_get_the_name_of_an_ended_process(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "CHECK_SECONDS", 0)
    known = Namespaces()
    assert known.name(NAMELESS) == "held[77]"
    (named / "pod-c").touch()
    holders = {Path("/proc/77/ns/net"): 0, named / "pod-c": NAMELESS}
    real = namespaces._inode
    monkeypatch.setattr(namespaces, "_inode", lambda path: holders.get(path, real(path)))
    assert known.name(NAMELESS) == "pod-c"


def test_a_name_is_checked_in_time_also_soon_after_another_one(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for one name must not put off the check of another one beyond the idle timeout of a packet."""
    now = [0.0]
    monkeypatch.setattr("tracer.node.namespaces.time.monotonic", lambda: now[0])
    known = Namespaces()
    first, second = ((named / name).stat().st_ino for name in ("pod-a", "pod-b"))
    now[0] = 1.0
    (named / "pod-a").rename(named / "pod-c")
    assert (known.name(first), known.name(second)) == ("pod-c", "pod-b")
    now[0] = 2.0
    (named / "pod-c").rename(named / "pod-d")
    assert known.name(first) == "pod-d"
    (named / "pod-b").rename(named / "pod-e")
    now[0] = 2.05
    known.name(second)
    now[0] = 2.05 + namespaces.CHECK_SECONDS - 0.01
    assert known.name(second) == "pod-e"


def test_a_removed_namespace_keeps_its_name_for_its_last_packets(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "CHECK_SECONDS", 0)
    known, inode = Namespaces(), (named / "pod-a").stat().st_ino
    (named / "pod-a").unlink()
    assert known.name(inode) == "pod-a"


def test_files_of_removed_namespaces_are_not_looked_at_again(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names are kept for their last packets, thousands of them where namespaces come and go."""
    monkeypatch.setattr(namespaces, "CHECK_SECONDS", 0)
    monkeypatch.setattr(namespaces, "_processes", lambda: iter(()))
    for number in range(50):
        (named / f"short-{number}").touch()
    known = Namespaces()
    inodes = {number: (named / f"short-{number}").stat().st_ino for number in range(50)}
    for number in range(50):
        (named / f"short-{number}").unlink()
    assert known.name(inodes[0]) == "short-0"
    real = namespaces._inode
    looked: list[str] = []

    def counted(path: Path) -> int:
        looked.append(path.name)
        return real(path)

    monkeypatch.setattr(namespaces, "_inode", counted)
    assert [known.name(inodes[number]) for number in (0, 1, 2)] == ["short-0", "short-1", "short-2"]
    assert not [name for name in looked if name.startswith("short")], looked


def test_a_name_is_not_checked_for_each_packet(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, inode = Namespaces(), (named / "pod-a").stat().st_ino
    assert known.name(inode) == "pod-a"
    monkeypatch.setattr(namespaces, "_inode", lambda path: pytest.fail("it was checked just now"))
    assert known.name(inode) == "pod-a"


def test_named_namespaces(named: Path) -> None:
    known = Namespaces()
    inode = (named / "pod-a").stat().st_ino
    assert known.find("pod-a") == inode
    assert known.find(str(named / "pod-a")) == inode
    assert known.name(inode) == "pod-a"


def test_another_namespace_that_is_called_node_is_not_the_nodes(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ip netns add node` makes it: its packets must not be taken for those of the node itself."""
    (named / HOST).touch()
    inode = (named / HOST).stat().st_ino
    known = Namespaces()
    name = known.name(inode)
    assert name == f"node (netns {inode})" and not is_host(name) and in_netns(name) == f" in node (netns {inode})"
    assert (known.name(NODE), known.find(HOST), known.find(name)) == (HOST, NODE, inode)
    process_is_in(1, 0, monkeypatch)
    assert not is_host(Namespaces().name(inode)), "also where the node's own namespace cannot be read"


def test_a_namespace_made_later_is_found(named: Path) -> None:
    known = Namespaces()
    (named / "pod-c").touch()
    assert known.name((named / "pod-c").stat().st_ino) == "pod-c"
    assert known.find("pod-c") == (named / "pod-c").stat().st_ino


def test_a_namespace_that_nothing_leads_to(named: Path) -> None:
    known = Namespaces()
    assert known.name(17) == "netns 17"
    (named / "late").touch()
    assert known.name(17) == "netns 17", "looked up once, not for every packet"
    assert known.name(0) == "", "no namespace at all"


def test_a_namespace_with_the_inode_of_one_without_a_name(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace that was gone before its name was read, and a later one with its inode: it has its own name."""
    now = [100.0]
    monkeypatch.setattr("tracer.node.namespaces.time.monotonic", lambda: now[0])
    (named / "later").touch()
    inode, known = (named / "later").stat().st_ino, Namespaces()
    del known._names[inode], known._holders[inode]
    (named / "later").rename(named / "hidden")
    with monkeypatch.context() as gone:
        gone.setattr(namespaces, "named_files", lambda: iter(()))
        assert known.name(inode) == f"netns {inode}"
    assert known.name(inode) == f"netns {inode}", "it was searched just now"
    now[0] += 2 * namespaces.CHECK_SECONDS
    assert known.name(inode) == "hidden"


@pytest.mark.usefixtures("few")
def test_processes_are_not_read_for_each_packet_of_a_namespace_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    read: list[float] = []

    def none() -> Iterator[int]:
        read.append(now[0])
        return iter(())

    monkeypatch.setattr("tracer.node.namespaces.time.monotonic", lambda: now[0])
    known = Namespaces()
    monkeypatch.setattr(namespaces, "_processes", none)
    for inode in (1234, 1235, 1236):
        assert known.name(inode) == f"netns {inode}"
    read.clear()
    for _ in range(100):
        now[0] += 0.02
        assert [known.name(inode) for inode in (1234, 1235, 1236)] == ["netns 1234", "netns 1235", "netns 1236"]
    assert 1 <= len(read) <= 2, "one search is for all namespaces"
    process_is_in(77, 1234, monkeypatch)
    monkeypatch.setattr(namespaces, "_processes", lambda: iter([77]))
    now[0] += namespaces.PROCESSES_SECONDS
    assert known.name(1234) == "held[77]"


@pytest.mark.usefixtures("few")
def test_by_number_or_process_when_there_is_one(named: Path) -> None:
    assert Namespaces().find(str(NODE)) == NODE
    assert Namespaces().find(str(NAMELESS)) == NAMELESS
    assert Namespaces().find("held[77]") == NAMELESS
    inode = (named / "pod-a").stat().st_ino
    assert Namespaces().find(str(inode)) == inode


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "name", ["no-such", "pid:999999999", "pid:x", "/no/such/file", "../pod-z", "4026531999", "0", "held", "held[78]", "init[1]"]
)
def test_find_lists_the_known_namespaces(name: str) -> None:
    with pytest.raises(BadOption) as e:
        Namespaces().find(name)
    assert str(e.value) == f"There is no network namespace {name!r} (known: held[77], node, pod-a, pod-b)."
    assert e.value.status == 2


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_a_nameless_namespace_is_called_by_a_process_in_it(named: Path) -> None:
    held = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert held.stdout
    assert held.stdin
    try:
        if not held.stdout.readline():
            pytest.skip("no namespace can be made here")
        known = Namespaces()
        inode = known.find(f"pid:{held.pid}")
        assert inode != known.node
        assert known.name(inode) == f"sh[{held.pid}]"
        assert Namespaces().find(f"sh[{held.pid}]") == Namespaces().find(str(inode)) == inode
    finally:
        held.stdin.close()
        held.wait(PATIENCE)
        held.stdout.close()


def test_owner_of_a_socket_of_ours() -> None:
    with socket.socket() as s:
        inode = os.fstat(s.fileno()).st_ino
        pid, command = Processes().owner(inode)
        assert pid == os.getpid()
        assert command == Path("/proc/self/comm").read_text().strip()


def test_a_socket_without_owner() -> None:
    assert Processes().owner(0) == (0, ""), "0: a socket that was not accepted"
    assert Processes().owner(1) == (0, "")


def test_a_known_server_is_read_before_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Processes(pause=3600)
    with socket.socket() as first, socket.socket() as second:
        assert known.owner(os.fstat(first.fileno()).st_ino)[0] == os.getpid()
        third = socket.socket()
        monkeypatch.setattr(namespaces, "_processes", lambda: pytest.fail("all processes are read once in a while only"))
        for s in (second, third):
            assert known.owner(os.fstat(s.fileno()).st_ino)[0] == os.getpid()
        third.close()
        assert known.owner(1) == (0, "")


def test_all_processes_are_not_read_for_every_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([iter([os.getpid()])])
    monkeypatch.setattr(processes, "_processes", lambda: next(readings))
    known = Processes(pause=3600)
    assert [known.owner(n) for n in (11, 12, 13)] == [(0, "")] * 3
    assert next(readings, None) is None


def test_interface() -> None:
    assert interface_index("lo") == socket.if_nametoindex("lo")


def test_interface_that_is_not_here() -> None:
    with pytest.raises(BadOption) as e:
        interface_index("nosuch0")
    assert re.fullmatch(r"There is no interface 'nosuch0' here \(there are: .*\blo\b.*\)\.", str(e.value))


def test_tracking() -> None:
    """This process's namespace or none: that depends on the machine."""
    counter = Path("/proc/sys/net/netfilter/nf_conntrack_count")
    used = counter.exists() and int(counter.read_text()) > 0
    assert tracking() == ({Path("/proc/self/ns/net").stat().st_ino} if used else set())


def test_a_socket_without_process_is_not_searched_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    known, read_pids = Processes(pause=3600), list[int]()
    monkeypatch.setattr(Processes, "_read", lambda self, pid, inodes: read_pids.append(pid))
    known._owners[7] = (1, "init")
    assert known.owner(2**40) == (0, "") and read_pids
    read_pids.clear()
    assert known.owner(2**40) == (0, "") and not read_pids
