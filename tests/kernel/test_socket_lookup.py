# SPDX-License-Identifier: Apache-2.0
"""Programs of sk_lookup: a packet of which one chose the socket, or that one refused, shows it, and no other packet does.

The probes are attached where such a program exists when a run begins, so there is a session of its own, and a program that
decides nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from scenes import topology
from scenes.netns import RUN_DIR, entered
from tests.kernel.captured import check_same_output
from tests.kernel.recorder import Recorder
from tests.kernel.test_programs import replayed
from tests.kernel.watching import NOTHING, Seen, Watch
from tests.support import bpf_programs
from tests.support.bpf_programs import SK_LOOKUP
from tracer.findings import Findings
from tracer.kernel import bpf_syscall
from tracer.kernel.program_watcher import ProgramWatcher
from tracer.kernel.session import Announcements, Kernel, Session
from tracer.model.filter import Filter
from tracer.model.finding import Finding
from tracer.model.hop import DetailHop
from tracer.model.packet import Outcome, Packet

ASKED, LISTENING = 9380, 9388
"""The port of the packets, and that of the socket that gets them."""
POD, OTHER_POD = topology.PODS[:2]
FILTER = Filter(ports=(ASKED, LISTENING))
ADDRESSES = {socket.AF_INET: POD.addr4, socket.AF_INET6: POD.addr6}
KINDS = pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["TCP", "UDP"])
FAMILIES = pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
NAME = "cil_lookup"
WAIT_SECONDS = 5.0


@contextmanager
def attached(program: int, netns: str = POD.name) -> Iterator[int]:
    """Attaches a program to a namespace, and closes it at the end; yields its id."""
    link = bpf_programs.attach_at(RUN_DIR / netns, program, bpf_syscall.SK_LOOKUP)
    try:
        yield bpf_syscall.program_info(program).number
    finally:
        os.close(link)
        os.close(program)


def passing(name: str = "other") -> int:
    return bpf_programs.load_passing(name, SK_LOOKUP, bpf_syscall.SK_LOOKUP)


@pytest.fixture(scope="module")
def lookup_watch(node: None) -> Iterator[Watch]:
    """The probes of a run that began when a program of sk_lookup was attached anywhere."""
    kernel, refusals = Kernel.running(), list[str]()
    announcements = Announcements(warn=refusals.append)
    with attached(passing(), OTHER_POD.name), Session(kernel, NOTHING, announcements=announcements) as session:
        assert not refusals, "a program that the kernel refuses makes all probes slower"
        inlined = {row.probe.name: row.why for row in session.refused if row.probe.lookups}
        if inlined:
            assert all("has no function" in why for why in inlined.values()), inlined
            pytest.skip("this kernel inlines the search by programs of sk_lookup")
        assert {"lookup4", "lookup6"} <= {row.probe.name for row in session.planned}
        yield Watch(kernel, session)


@contextmanager
def listener(family: int, kind: int, port: int) -> Iterator[socket.socket]:
    """A bound socket in the pod."""
    with entered(POD.name):
        made = socket.socket(family, kind)
    with made as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((ADDRESSES[socket.AddressFamily(family)], port))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        yield sock


def send(family: int, kind: int, *ports: int) -> None:
    """Connects from the node to these ports of the pod, or sends a datagram to each of them."""
    for port in ports:
        with socket.socket(family, kind) as sock, suppress(ConnectionRefusedError):
            sock.settimeout(WAIT_SECONDS)
            sock.connect((ADDRESSES[socket.AddressFamily(family)], port))
            if kind == socket.SOCK_DGRAM:
                sock.send(b"x" * 20)
            time.sleep(0.02)


def requests(seen: Seen) -> list[Packet]:
    """SYNs and datagrams to the pod, in the order of their times."""
    found = [p for p in seen.packets if p.tcp_flags == "SYN" or p.protocol == "UDP"]
    for packet in found:
        print(packet.verdict, chosen(packet))
    return sorted(found, key=lambda p: p.hops[0].time)


def chosen(packet: Packet) -> list[dict[str, int | str]]:
    """What the packet shows of a chosen socket."""
    return [dict(h.detail.facts) for h in packet.hops if isinstance(h, DetailHop) and h.detail.what == "lookup"]


def findings(packets: list[Packet]) -> list[Finding]:
    made = Findings()
    for packet in packets:
        made.look(packet)
    return [each for each in made.all if each.name == "dropped_by_program"]


@FAMILIES
@KINDS
def test_a_chosen_socket(lookup_watch: Watch, family: int, kind: int) -> None:
    """Packets to the port that the program takes show the socket; those to the socket's own port are silent."""
    with listener(family, kind, LISTENING) as sock:
        with (
            attached(bpf_programs.load_steering(NAME, ASKED, sock)) as number,
            ProgramWatcher() as programs,
            lookup_watch(FILTER, programs=programs) as seen,
        ):
            send(family, kind, ASKED, LISTENING, ASKED, LISTENING, ASKED)
        found = requests(seen)
    address = ADDRESSES[socket.AddressFamily(family)]
    where = f"[{address}]:{LISTENING}" if family == socket.AF_INET6 else f"{address}:{LISTENING}"
    steered = [{"socket": where, "chosen": f"by eBPF program {NAME} (id {number}) at sk_lookup, named as by Cilium"}]
    assert [chosen(p) for p in found] == [steered, [], steered, [], steered]
    assert {p.outcome for p in found} == {Outcome.DELIVERED} and not findings(found)


@FAMILIES
@KINDS
def test_a_refused_packet(lookup_watch: Watch, family: int, kind: int) -> None:
    """The program refuses packets although a socket listens; those to another port are delivered."""
    with listener(family, kind, ASKED), listener(family, kind, LISTENING):
        with (
            attached(bpf_programs.load_refusing_port(NAME, ASKED)) as number,
            ProgramWatcher() as programs,
            lookup_watch(FILTER, programs=programs) as seen,
        ):
            send(family, kind, ASKED, LISTENING, ASKED, LISTENING, ASKED)
        found = requests(seen)
    refused = f"REFUSED by eBPF program {NAME} (id {number}) at sk_lookup, named as by Cilium in {POD.name}"
    assert [p.verdict if p.outcome is Outcome.REFUSED else "" for p in found] == [refused, "", refused, "", refused]
    assert [p.outcome for p in found].count(Outcome.DELIVERED) == 2 and not any(map(chosen, found))
    said = findings(found)
    assert len(said) == 1 and said[0].certain
    assert f"{NAME} (id {number}), named as by Cilium, refuses packets" in said[0].cause


@KINDS
def test_a_program_that_decides_nothing(lookup_watch: Watch, kind: int) -> None:
    """The healthy twin: packets to a port without a socket are refused by the kernel itself."""
    with listener(socket.AF_INET, kind, LISTENING):
        with (
            attached(passing(NAME)),
            ProgramWatcher() as programs,
            lookup_watch(FILTER, programs=programs) as seen,
        ):
            send(socket.AF_INET, kind, ASKED, LISTENING, ASKED)
        found = requests(seen)
    assert [p.outcome for p in found] == [Outcome.REFUSED, Outcome.DELIVERED, Outcome.REFUSED]
    assert [p.verdict for p in found[::2]] == [f"no listener in {POD.name}: {found[0].protocol} {POD.addr4}:{ASKED}"] * 2
    assert not any(map(chosen, found)) and not findings(found)


def test_of_two_programs_none_is_chosen(lookup_watch: Watch) -> None:
    with listener(socket.AF_INET, socket.SOCK_DGRAM, ASKED), ExitStack() as stack:
        first = stack.enter_context(attached(passing()))
        second = stack.enter_context(attached(bpf_programs.load_refusing_port(NAME, ASKED)))
        with ProgramWatcher() as programs, lookup_watch(FILTER, programs=programs) as seen:
            send(socket.AF_INET, socket.SOCK_DGRAM, ASKED)
        (found,) = requests(seen)
    assert found.outcome is Outcome.REFUSED and found.drop and found.drop.program and not found.drop.program.program
    assert [each.number for each in found.drop.program.candidates] == [first, second]
    (finding,) = findings([found])
    assert not finding.certain and finding.cause.startswith("Perhaps one of 2 programs refuses (which of them is not known)")


def test_a_program_that_was_attached_later(lookup_watch: Watch) -> None:
    """What was attached between two readings may have decided: it is a candidate."""
    with (
        listener(socket.AF_INET, socket.SOCK_DGRAM, ASKED),
        ProgramWatcher() as programs,
        attached(bpf_programs.load_refusing_port(NAME, ASKED)) as number,
    ):
        with lookup_watch(FILTER, programs=programs) as seen:
            send(socket.AF_INET, socket.SOCK_DGRAM, ASKED)
        (found,) = requests(seen)
    assert found.drop and found.drop.program and not found.drop.program.program
    assert [each.number for each in found.drop.program.candidates] == [number]


@pytest.mark.parametrize("explains", [True, False])
def test_a_capture_of_both(lookup_watch: Watch, tmp_path: Path, explains: bool) -> None:
    """A replay prints what the run printed, also of a capture that was not explained when it was made."""
    recorder = Recorder(lookup_watch.kernel, lookup_watch.session, tmp_path)
    kind, family = socket.SOCK_DGRAM, socket.AF_INET
    with listener(family, kind, LISTENING) as sock, attached(bpf_programs.load_steering(NAME, ASKED, sock)):
        made = recorder("chosen", lambda: send(family, kind, ASKED, LISTENING), FILTER, explains=explains)
    if explains:
        check_same_output(made)
    assert replayed(made.files[0]).count(f"socket {POD.addr4}:{LISTENING}, chosen by eBPF program {NAME} (id ") == 1
    with listener(family, kind, ASKED), attached(bpf_programs.load_refusing_port(NAME, ASKED)):
        made = recorder("refused", lambda: send(family, kind, ASKED, LISTENING), FILTER, explains=explains)
    if explains:
        check_same_output(made)
    assert replayed(made.files[0]).count(f"=> REFUSED by eBPF program {NAME} (id ") == 1
