# SPDX-License-Identifier: Apache-2.0
"""Datagrams of which an eBPF program replaces the address, at connect() or sendmsg(): those show it, and no other."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from scenes import topology
from scenes.netns import entered
from tests.kernel.captured import check_same_output
from tests.kernel.cgroup_sockets import CGROUPS, at_cgroup, cgroup, facts_of, has_cgroups, made_in, needs_cgroups
from tests.kernel.recorder import Recorder
from tests.kernel.watching import Seen, Watch
from tests.support import bpf_programs
from tracer.kernel import bpf_syscall
from tracer.kernel.program_watcher import ProgramWatcher
from tracer.model.filter import Filter
from tracer.model.packet import Packet

PORT = 9292
POD, OTHER_POD = topology.PODS[:2]
FILTER = Filter(ports=(PORT,))
ASKED = {socket.AF_INET: "10.96.99.99", socket.AF_INET6: "fd00:96::99"}
REAL = {socket.AF_INET: POD.addr4, socket.AF_INET6: POD.addr6}
WAIT_SECONDS = 5.0
FAMILIES = pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
Facts = list[dict[str, int | str]]


@contextmanager
def server(family: int) -> Iterator[socket.socket]:
    """A socket in the pod."""
    with entered(POD.name):
        made = socket.socket(family, socket.SOCK_DGRAM)
    with made as sock:
        sock.bind((REAL[socket.AddressFamily(family)], PORT))
        sock.settimeout(WAIT_SECONDS)
        yield sock


@contextmanager
def replacing(directory: Path, at: str, family: int) -> Iterator[int]:
    """A program that replaces the address at connect() or sendmsg(); yields its id."""
    kind = bpf_syscall.CONNECT_TYPES[f"{at}{6 if family == socket.AF_INET6 else 4}"]
    known = socket.AddressFamily(family)
    program = bpf_programs.load_replacing(f"cil_{at}", kind, ASKED[known], REAL[known])
    try:
        with at_cgroup(directory, kind, program):
            yield bpf_syscall.program_info(program).number
    finally:
        os.close(program)


@contextmanager
def sockets(family: int, *directories: Path, netns: str | None = None) -> Iterator[list[socket.socket]]:
    """Sockets of these cgroups."""
    with ExitStack() as stack:
        made = [stack.enter_context(made_in(each, netns, family=family)) for each in directories]
        for each in made:
            each.settimeout(WAIT_SECONDS)
        yield made


def exchange(sock: socket.socket, other: socket.socket, address: str = "", count: int = 2) -> None:
    """Sends datagrams, and answers each of them. address: "" = the socket is connected."""
    for _ in range(count):
        if address:
            sock.sendto(b"x" * 20, (address, PORT))
        else:
            sock.send(b"x" * 20)
        _, client = other.recvfrom(100)
        other.sendto(b"y" * 30, client)
        sock.recv(100)


def shown(seen: Seen) -> tuple[list[Facts], list[Facts]]:
    """What the requests show, and what their answers show, in the order of their times."""
    packets = sorted((p for p in seen.packets if p.protocol == "UDP"), key=lambda p: p.hops[0].time)
    of: dict[bool, list[Packet]] = {way: [p for p in packets if (p.endpoints.dport == PORT) == way] for way in (True, False)}
    found = tuple([facts_of(p) for p in of[way]] for way in (True, False))
    print(found)
    return found[0], found[1]


def expected(watch: Watch, number: int, at: str, family: int, is_at_root: bool = True) -> Facts:
    """What a replaced datagram shows."""
    is_ipv6 = family == socket.AF_INET6
    asked = ASKED[socket.AddressFamily(family)]
    point, program = f"{at}{6 if is_ipv6 else 4}", f"eBPF program cil_{at} (id {number})"
    named = f"by {program} at {point} of /, named as by Cilium"
    doubt = "what was attached at that moment is not known"
    candidate = f"at {point} of /k8snet-test, candidate {program} (named as by Cilium): {doubt}"
    changed = {"changed": named if is_at_root else candidate} if has_cgroups(watch) else {}
    return [{"asked": f"[{asked}]:{PORT}" if is_ipv6 else f"{asked}:{PORT}", **changed}]


@FAMILIES
@pytest.mark.parametrize("is_at_root", [False, True], ids=["its cgroup", "root"])
def test_connected(watch: Watch, family: int, is_at_root: bool) -> None:
    """The first datagram of each direction shows what the socket asked for; of one that asked for the pod itself, none does."""
    asked, real = ASKED[socket.AddressFamily(family)], REAL[socket.AddressFamily(family)]
    with (
        cgroup("k8snet-test") as directory,
        server(family) as other,
        replacing(CGROUPS if is_at_root else directory, "connect", family) as number,
        sockets(family, directory, directory, directory, CGROUPS) as made,
        ProgramWatcher() as programs,
        watch(FILTER, programs=programs) as seen,
    ):
        for sock, address in zip(made, (asked, real, asked, real), strict=True):
            sock.connect((address, PORT))
            assert sock.getpeername()[:2] == (real, PORT)
        for sock in made:
            exchange(sock, other)
    replaced = expected(watch, number, "connect", family, is_at_root)
    assert shown(seen) == ([replaced, [], [], [], replaced, [], [], []],) * 2


@FAMILIES
@pytest.mark.parametrize("is_at_root", [False, True], ids=["its cgroup", "root"])
def test_sent(watch: Watch, family: int, is_at_root: bool) -> None:
    """Each datagram that is sent to a replaced address shows it, and so does its answer."""
    asked, real = ASKED[socket.AddressFamily(family)], REAL[socket.AddressFamily(family)]
    with (
        cgroup("k8snet-test") as directory,
        server(family) as other,
        replacing(CGROUPS if is_at_root else directory, "sendmsg", family) as number,
        sockets(family, directory, directory, CGROUPS) as (first, second, third),
        ProgramWatcher() as programs,
        watch(FILTER, programs=programs) as seen,
    ):
        exchange(first, other, asked)
        exchange(second, other, real)
        exchange(third, other, real)
    replaced = expected(watch, number, "sendmsg", family, is_at_root)
    assert shown(seen) == ([replaced, replaced, [], [], [], []],) * 2


def test_a_socket_that_asks_for_both(watch: Watch) -> None:
    """The requests show what each asked for; of an answer it is not known which request it belongs to."""
    family = socket.AF_INET
    with (
        server(family) as other,
        replacing(CGROUPS, "sendmsg", family) as number,
        sockets(family, CGROUPS, CGROUPS) as (sock, late),
        ProgramWatcher() as programs,
        watch(FILTER, programs=programs) as seen,
    ):
        exchange(sock, other, ASKED[family])
        exchange(sock, other, REAL[family])
        exchange(sock, other, ASKED[family])
        for address in (REAL[family], ASKED[family]):
            late.sendto(b"x" * 20, (address, PORT))
        for _ in range(2):
            _, client = other.recvfrom(100)
            other.sendto(b"y" * 30, client)
        assert late.recv(100) == late.recv(100)
    replaced = expected(watch, number, "sendmsg", family)
    requests, answers = shown(seen)
    assert requests == [replaced, replaced, [], [], replaced, replaced, [], replaced]
    assert answers == [replaced, replaced, [], [], [], [], [], []]


def test_a_connected_socket_that_sends_elsewhere(watch: Watch) -> None:
    """The datagram to another address than the socket is connected to does not show what connect() asked for."""
    family = socket.AF_INET
    with (
        server(family) as other,
        replacing(CGROUPS, "connect", family) as number,
        sockets(family, CGROUPS) as (sock,),
        ProgramWatcher() as programs,
        watch(FILTER, programs=programs) as seen,
    ):
        sock.connect((ASKED[family], PORT))
        sock.sendto(b"x" * 20, (OTHER_POD.addr4, PORT))
        exchange(sock, other, count=1)
    assert shown(seen)[0] == [[], expected(watch, number, "connect", family)]


def test_addresses_of_sockets_that_are_used_again(watch: Watch) -> None:
    """What a closed socket asked for is not shown of the next one at its address."""
    family = socket.AF_INET
    with server(family) as other, ProgramWatcher() as programs, watch(FILTER, programs=programs) as seen:
        with replacing(CGROUPS, "connect", family), replacing(CGROUPS, "sendmsg", family):
            for _ in range(20):
                with sockets(family, CGROUPS) as (sock,):
                    sock.connect((ASKED[family], PORT))
                with sockets(family, CGROUPS) as (sock,):
                    sock.sendto(b"x", (ASKED[family], PORT))
                other.recv(100)
        for _ in range(20):
            with sockets(family, CGROUPS) as (sock,):
                sock.connect((REAL[family], PORT))
                exchange(sock, other, count=1)
            with sockets(family, CGROUPS) as (sock,):
                exchange(sock, other, REAL[family], count=1)
    requests, answers = shown(seen)
    assert len(requests) == 60 and len(answers) == 40
    assert all(requests[:20]) and not any(requests[20:]) and not any(answers)


def test_connected_sockets_at_addresses_of_others(watch: Watch) -> None:
    """What a closed socket asked for at sendmsg() does not hide what the next one at its address asked for at connect()."""
    needs_cgroups(watch)
    family, times = socket.AF_INET, 30
    with (
        server(family) as other,
        replacing(CGROUPS, "connect", family),
        replacing(CGROUPS, "sendmsg", family),
        ProgramWatcher() as programs,
        watch(FILTER, programs=programs) as seen,
    ):
        for _ in range(times):
            with sockets(family, CGROUPS) as (sock,):
                exchange(sock, other, ASKED[family], count=1)
            with sockets(family, CGROUPS) as (sock,):
                sock.connect((ASKED[family], PORT))
                exchange(sock, other, count=1)
    points = ["sendmsg4", "connect4"] * times
    for way in shown(seen):
        assert [[point for point in ("sendmsg4", "connect4") if point in str(facts)] for facts in way] == [[p] for p in points]


def test_in_a_pod(watch: Watch) -> None:
    """Sockets of another network namespace."""
    family = socket.AF_INET
    with (
        server(family) as other,
        replacing(CGROUPS, "sendmsg", family) as number,
        sockets(family, CGROUPS, CGROUPS, netns=OTHER_POD.name) as (first, second),
        ProgramWatcher() as programs,
        watch(FILTER, programs=programs) as seen,
    ):
        exchange(first, other, ASKED[family])
        exchange(second, other, REAL[family])
    replaced = expected(watch, number, "sendmsg", family)
    assert shown(seen) == ([replaced, replaced, [], []],) * 2


def test_a_capture_has_the_names(recorder: Recorder) -> None:
    """A replay prints what the run printed."""
    family = socket.AF_INET

    def work() -> None:
        exchange(connected, other)
        exchange(sending, other, ASKED[family])

    with (
        server(family) as other,
        replacing(CGROUPS, "connect", family),
        replacing(CGROUPS, "sendmsg", family),
        sockets(family, CGROUPS, CGROUPS) as (connected, sending),
    ):
        connected.connect((ASKED[family], PORT))
        made = recorder("replaced-datagrams", work, FILTER)
    check_same_output(made)
    printed = " ".join(made.text.read_text().split())
    asked = f"asked {ASKED[family]}:{PORT}"
    assert printed.count(asked) == 2 + 2, "a datagram like an earlier one is in short form"
    if recorder.kernel.types.vmlinux.field("sock", "sk_cgrp_data.cgroup"):
        assert [printed.count(f"{asked}, changed by eBPF program cil_{at}") for at in ("connect", "sendmsg")] == [2, 2]
    shown_in_json = made.json.read_text().count(f'"asked":"{ASKED[family]}:{PORT}"')
    assert shown_in_json == 2 + 4
