# SPDX-License-Identifier: Apache-2.0
"""eBPF programs that redirect or rewrite one of three packets: each is named with its program, and no other packet is.

The programs count what they do, so that the number of named packets is compared with the program's own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from scenes import topology
from tests.kernel.captured import check_same_output
from tests.kernel.recorder import Recorder
from tests.kernel.test_programs import FILTER, PACKETS, POD, PORT, attached, replayed, run, send, with_xdp
from tests.kernel.watching import NOTHING, Watch
from tests.support import bpf_programs
from tests.support.bpf_programs import EGRESS, SCHED_CLS, XDP, TestProgram
from tracer.kernel import bpf_syscall
from tracer.kernel.program_watcher import ProgramWatcher, is_any_attached
from tracer.kernel.session import Announcements, Kernel, Session
from tracer.model.endpoints import Endpoints
from tracer.model.hop import NatHop, RedirectHelper, RedirectHop
from tracer.model.packet import Outcome, Packet

TARGET, OTHER_PORT = "dummy-t", 9292
PROGRAM = "cil_from_container"
NAMED = "eBPF program cil_from_contai (id {}) at {} of veth-a, named as by Cilium"


@pytest.fixture(scope="module", params=os.environ.get("K8SNET_ATTACH", "auto").split(","))
def watch(node: None, request: pytest.FixtureRequest) -> Iterator[Watch]:
    """The probes of a run that begins where programs are attached to interfaces."""
    kernel, refusals = Kernel.running(), list[str]()
    said = Announcements(warn=refusals.append)
    with Session(kernel, NOTHING, only=request.param, programs=True, announcements=said) as session:
        assert not refusals and not [r for r in session.refused if r.probe.programs], session.refused
        yield Watch(kernel, session)


@pytest.fixture
def target() -> Iterator[int]:
    """The number of an interface that sends to no other one."""
    run(f"ip link add {TARGET} type dummy && ip link set {TARGET} up")
    try:
        yield socket.if_nametoindex(TARGET)
    finally:
        run(f"ip link del {TARGET}")


def traced(watch: Watch, work: Callable[[], object] = send) -> list[Packet]:
    with ProgramWatcher() as programs, watch(FILTER, programs=programs) as seen:
        work()
    for packet in seen.packets:
        print(packet.verdict, [type(h).__name__ for h in packet.hops])
    return [p for p in seen.packets if p.protocol == "UDP"]


def redirects(packets: list[Packet]) -> list[RedirectHop]:
    return [h for p in packets for h in p.hops if isinstance(h, RedirectHop)]


def rewrites(packets: list[Packet]) -> list[NatHop]:
    return [h for p in packets for h in p.hops if isinstance(h, NatHop)]


def check_redirected(packets: list[Packet], program: TestProgram, text: str) -> list[RedirectHop]:
    """Each packet that the program redirected has this text, and no other packet has a redirection or a rewrite."""
    found = redirects(packets)
    assert program.seen == PACKETS == len(packets) and program.dropped == PACKETS // 3
    assert [each.redirect.text for each in found] == [text] * program.dropped
    assert not rewrites(packets)
    return found


def loaded(act: list[bytes], name: str = PROGRAM, kind: int = SCHED_CLS, attach_type: int = 0) -> TestProgram:
    return bpf_programs.load(name, kind, PORT, attach_type=attach_type, act=act)


def test_tc_ingress_to_another_interface(watch: Watch, target: int) -> None:
    program = loaded(bpf_programs.redirecting(target))
    with attached(program):
        assert is_any_attached()
        packets = traced(watch)
        text = f"to {TARGET}, by " + NAMED.format(program.number, "tc ingress")
        found = check_redirected(packets, program, text)
        assert {(h.redirect.target, h.redirect.helper, h.in_iface) for h in found} == {(TARGET, RedirectHelper.PLAIN, "veth-a")}
        ended = [p.verdict for p in packets if p.outcome in (Outcome.FORWARDED, Outcome.SENT)]
        assert ended == [f"redirected {text}"] * program.dropped
    assert not is_any_attached()


def test_tc_egress_to_another_interface(watch: Watch, target: int) -> None:
    program = loaded(bpf_programs.redirecting(target))
    with attached(program, parent=EGRESS):
        packets = traced(watch, lambda: send(to_pod=True))
        found = check_redirected(packets, program, f"to {TARGET}, by " + NAMED.format(program.number, "tc egress"))
        assert {h.out_iface for h in found} == {"veth-a"}
        assert [p.outcome for p in packets if redirects([p])] == [Outcome.SENT] * program.dropped


def test_tcx(watch: Watch, target: int) -> None:
    program = loaded(bpf_programs.redirecting(target), attach_type=bpf_syscall.TCX_INGRESS)
    with bpf_programs.attached_by_tcx(POD.host_end, program):
        check_redirected(traced(watch), program, f"to {TARGET}, by " + NAMED.format(program.number, "tc ingress"))


def test_as_received_by_another_interface(watch: Watch, target: int) -> None:
    """The node gets the packet by that interface."""
    program = loaded(bpf_programs.redirecting(target, is_ingress=True))
    with attached(program):
        packets = traced(watch)
        text = f"to {TARGET} as received there, by " + NAMED.format(program.number, "tc ingress")
        check_redirected(packets, program, text)


def test_to_the_namespace_of_a_peer(watch: Watch) -> None:
    program = loaded(bpf_programs.redirecting_to_peer(socket.if_nametoindex("veth-b")))
    with attached(program):
        packets = traced(watch)
        text = "to the other end of veth-b, by " + NAMED.format(program.number, "tc ingress")
        check_redirected(packets, program, text)


def test_to_a_neighbour(watch: Watch) -> None:
    program = loaded(bpf_programs.redirecting_to_neighbour(socket.if_nametoindex("cni0")))
    with attached(program, parent=EGRESS):
        found = redirects(traced(watch, lambda: send(to_pod=True)))
        text = "to cni0, to a neighbour, by " + NAMED.format(program.number, "tc egress")
        # The redirected packet comes to the same program by the bridge: each third one of those that it sees is redirected.
        assert len(found) == program.dropped >= PACKETS // 3
        assert {h.redirect.text for h in found} == {text}


def test_a_copy(watch: Watch, target: int) -> None:
    program = loaded(bpf_programs.copying(target))
    with attached(program):
        packets = traced(watch)
        check_redirected(packets, program, f"a copy to {TARGET}, by " + NAMED.format(program.number, "tc ingress"))
        assert not any(p.verdict.startswith("redirected") for p in packets)


def test_generic_xdp(watch: Watch, target: int) -> None:
    program = loaded(bpf_programs.redirecting(target), "xdp_redirect", XDP)
    with with_xdp(program, bpf_programs.GENERIC):
        packets = traced(watch)
        text = f"to {TARGET}, by eBPF program xdp_redirect (id {program.number}) at XDP of veth-a, loader unknown"
        found = check_redirected(packets, program, text)
        assert {h.redirect.program and h.redirect.program.is_observed for h in found} == {True}


def test_of_two_programs_none_is_chosen(watch: Watch, target: int) -> None:
    first, second = bpf_programs.load("first", SCHED_CLS, PORT, nth=100_000), loaded(bpf_programs.redirecting(target))
    with attached(first, second):
        found = redirects(traced(watch))
        assert len(found) == second.dropped == PACKETS // 3
        assert {h.redirect.program and h.redirect.program.program for h in found} == {None}
        assert all({c.number for c in h.redirect.program.candidates} == {first.number, second.number}
                   for h in found if h.redirect.program)  # fmt: skip


def test_a_program_that_passes_everything(watch: Watch) -> None:
    """The healthy twin."""
    program = bpf_programs.load(PROGRAM, SCHED_CLS, PORT, nth=100_000)
    with attached(program), attached_at_egress():

        def both_ways() -> None:
            send()
            send(to_pod=True)

        packets = traced(watch, both_ways)
        assert len(packets) == 2 * PACKETS and program.seen == PACKETS
        assert not redirects(packets) and not rewrites(packets)


@contextmanager
def attached_at_egress() -> Iterator[None]:
    """A program at egress of the same interface that passes everything."""
    program = bpf_programs.load("cil_to_container", SCHED_CLS, PORT, nth=100_000)
    bpf_programs.attach_tc(POD.host_end, program, EGRESS)
    try:
        yield
    finally:
        program.close()


def check_rewritten(packets: list[Packet], program: TestProgram, text: str, before: Endpoints, after: Endpoints) -> None:
    """Each packet that the program rewrote has its name with both headers, and no other packet has."""
    found = rewrites(packets)
    assert program.seen == PACKETS == len(packets) and program.dropped == PACKETS // 3
    assert [each.program.text if each.program else "" for each in found] == [text] * program.dropped
    changed = {(each.nat.before.dst, each.nat.before.dport, each.nat.after.dst, each.nat.after.dport) for each in found}
    assert changed == {(before.dst, before.dport, after.dst, after.dport)}
    assert not redirects(packets)


def test_a_program_at_ingress_rewrites_the_destination(watch: Watch) -> None:
    old, new = Endpoints("", 0, topology.GATEWAY4, PORT), Endpoints("", 0, topology.NODE4, OTHER_PORT)
    program = loaded(bpf_programs.rewriting(old.dst, new.dst, new.dport))
    with attached(program):
        packets = traced(watch)
        check_rewritten(packets, program, "by " + NAMED.format(program.number, "tc ingress"), old, new)
        ends = {(p.endpoints.dst, p.endpoints.dport) for p in packets}
        assert ends == {(old.dst, old.dport)}, "each packet has the destination with which it came"


def test_a_program_at_egress_rewrites_the_destination(watch: Watch) -> None:
    old, new = Endpoints("", 0, POD.addr4, PORT), Endpoints("", 0, topology.PODS[1].addr4, OTHER_PORT)
    program = loaded(bpf_programs.rewriting(old.dst, new.dst, new.dport))
    with attached(program, parent=EGRESS):
        packets = traced(watch, lambda: send(to_pod=True))
        check_rewritten(packets, program, "by " + NAMED.format(program.number, "tc egress"), old, new)


def test_a_translation_by_netfilter_is_not_that_of_a_program(watch: Watch) -> None:
    """A program that passes everything, and DNAT of the same packets."""
    program = bpf_programs.load(PROGRAM, SCHED_CLS, PORT, nth=100_000)
    rule = f"PREROUTING -i cni0 -p udp --dport {PORT} -j DNAT --to-destination {topology.NODE4}:{OTHER_PORT}"
    run(f"iptables-legacy -w -t nat -I {rule}")
    try:
        with attached(program), attached_at_egress():
            found = rewrites(traced(watch))
    finally:
        run(f"iptables-legacy -w -t nat -D {rule}")
    assert len(found) >= PACKETS and {h.nat.kind for h in found} <= {"DNAT", "reverse DNAT"}
    assert not any(h.program for h in found)


@pytest.mark.parametrize("explains", [True, False])
def test_a_capture_has_the_names(recorder: Recorder, target: int, explains: bool) -> None:
    program = loaded(bpf_programs.redirecting(target))
    with attached(program):
        made = recorder(f"steps-{explains}", send, FILTER, explains=explains)
        acted = program.dropped
    named = f"redirected to {TARGET}, by eBPF program cil_from_contai (id {program.number}) at tc ingress of veth-a"
    if explains:
        check_same_output(made)
        assert " ".join(made.text.read_text().split()).count(f"=> {named}") == acted > 0
        assert made.json.read_text().count('"helper":"bpf_redirect"') == acted
    else:
        assert replayed(made.files[0]).count("=> redirected to") == acted > 0


def test_without_programs_no_probe_is_added() -> None:
    kernel = Kernel.running()
    with Session(kernel, NOTHING) as session:
        assert not [row for row in session.planned if row.probe.programs]
