# SPDX-License-Identifier: Apache-2.0
"""eBPF programs that drop one of three packets at an interface of a pod or at a cgroup: each drop is named, and no other.

The programs count what they drop, so that the number of named drops is compared with the program's own.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from scenes import topology
from scenes.netns import entered
from tests.kernel.captured import check_same_output, read
from tests.kernel.cgroup_sockets import CGROUPS, at_cgroup, cgroup, facts_of, has_cgroups, made_in, needs_cgroups
from tests.kernel.recorder import Recorder
from tests.kernel.watching import Watch
from tests.support import bpf_programs
from tests.support.bpf_programs import CGROUP_SKB, EGRESS, INGRESS, SCHED_CLS, SK_LOOKUP, XDP, TestProgram
from tracer.commands import doctor
from tracer.findings import Findings
from tracer.kernel import bpf_syscall
from tracer.kernel.program_watcher import ProgramWatcher
from tracer.model.bpf_program import AttachPoint, ProgramAction
from tracer.model.filter import Filter
from tracer.model.packet import Outcome, Packet

PORT, PACKETS = 9191, 30
SO_ATTACH_FILTER = 26
NETKIT_NODE, NETKIT_POD = "10.99.0.1", "10.99.0.2"
POD = topology.PODS[0]
FILTER = Filter(ports=(PORT,))


@contextmanager
def attached(*programs: TestProgram, iface: str = POD.host_end, parent: int = INGRESS) -> Iterator[None]:
    """The programs as filters of tc, in this order."""
    bpf_programs.clsact(iface)
    try:
        for at, program in enumerate(programs, 1):
            bpf_programs.attach_tc(iface, program, parent, at)
        yield
    finally:
        bpf_programs.remove_clsact(iface)
        for program in programs:
            program.close()


@contextmanager
def with_xdp(program: TestProgram, mode: int) -> Iterator[None]:
    try:
        bpf_programs.attach_xdp(POD.host_end, program, mode)
    except OSError as e:
        program.close()
        pytest.skip(f"no XDP of this mode at veth: {e}")
    try:
        yield
    finally:
        bpf_programs.attach_xdp(POD.host_end, None, mode)
        program.close()


def send(count: int = PACKETS, to_pod: bool = False, address: str = "") -> None:
    """Sends datagrams from the pod to the node, or the other way. address: to another address than that of the bridge."""
    with entered(None if to_pod else POD.name):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    send_from(sock, address or (POD.addr4 if to_pod else topology.GATEWAY4), count)


def send_from(sock: socket.socket, address: str, count: int = PACKETS) -> None:
    with sock:
        for _ in range(count):
            with suppress(ConnectionRefusedError, PermissionError):
                sock.sendto(b"x" * 20, (address, PORT))
            time.sleep(0.01)


def drops(packets: list[Packet]) -> list[ProgramAction]:
    """What is known of the programs that dropped these packets."""
    return [p.drop.program for p in packets if p.drop and p.drop.program]


def traced(watch: Watch, work: Callable[[], object] = send) -> list[Packet]:
    with ProgramWatcher() as programs, watch(FILTER, programs=programs) as seen:
        work()
    for packet in seen.packets:
        print(packet.verdict)
    requests = [p for p in seen.packets if p.protocol == "UDP"]
    others = {p.drop.function for p in requests if p.outcome is Outcome.DROPPED and p.drop and not p.drop.program}
    # Before 5.17 a datagram without a socket is dropped without a reason.
    assert others <= (set() if watch.kernel.drop_reasons() else {"__udp4_lib_rcv"})
    return requests


def check_named(packets: list[Packet], program: TestProgram, text: str) -> None:
    """Each packet that the program dropped has its name, and no other packet has one."""
    found = drops(packets)
    assert program.seen == PACKETS and program.dropped == PACKETS // 3
    assert [each.text for each in found] == [text.format(program.number)] * program.dropped
    assert {each.program.number if each.program else 0 for each in found} == {program.number}


@pytest.mark.matrix
def test_tc_ingress(watch: Watch) -> None:
    program = bpf_programs.load("cil_from_container", SCHED_CLS, PORT)
    with attached(program):
        found = traced(watch)
        if watch.kernel.drop_reasons():
            check_named(found, program, "by eBPF program cil_from_contai (id {}) at tc ingress of veth-a, named as by Cilium")
        else:
            check_candidate(found, program, AttachPoint.TC_INGRESS)
        assert len(found) == PACKETS
        assert findings(found) == [("dropped_by_program", bool(watch.kernel.drop_reasons()))]


def findings(packets: list[Packet]) -> list[tuple[str, bool]]:
    made = Findings()
    for packet in packets:
        made.look(packet)
    return [(each.name, each.certain) for each in made.all]


@pytest.mark.matrix
def test_tc_egress(watch: Watch) -> None:
    program = bpf_programs.load("cali_to_wl", SCHED_CLS, PORT)
    with attached(program, parent=EGRESS):
        found = traced(watch, lambda: send(to_pod=True))
        if watch.kernel.drop_reasons():
            check_named(found, program, "by eBPF program cali_to_wl (id {}) at tc egress of veth-a, named as by Calico")
        else:
            check_candidate(found, program, AttachPoint.TC_EGRESS)
        assert len(found) == PACKETS


def check_candidate(packets: list[Packet], program: TestProgram, point: AttachPoint) -> None:
    """Each packet that the program dropped has it as the only candidate."""
    found = drops(packets)
    assert len(found) == program.dropped == PACKETS // 3
    assert {(each.point, each.program, tuple(c.number for c in each.candidates)) for each in found} == {
        (point, None, (program.number,))
    }
    assert all(each.doubt for each in found)


@pytest.mark.matrix
def test_tcx(watch: Watch) -> None:
    program = bpf_programs.load("cil_from_netdev", SCHED_CLS, PORT, attach_type=bpf_syscall.TCX_INGRESS)
    with bpf_programs.attached_by_tcx(POD.host_end, program):
        check_named(
            traced(watch), program, "by eBPF program cil_from_netdev (id {}) at tc ingress of veth-a, named as by Cilium"
        )


@pytest.mark.matrix
@pytest.mark.parametrize("mode", [bpf_programs.GENERIC, bpf_programs.NATIVE], ids=["generic", "native"])
def test_xdp(watch: Watch, mode: int) -> None:
    program = bpf_programs.load("xdp_filter", XDP, PORT)
    with with_xdp(program, mode):
        text = "by eBPF program xdp_filter (id {}) at XDP of veth-a, loader unknown, unless memory was short"
        check_named(traced(watch), program, text)


def test_of_two_programs_none_is_chosen(watch: Watch) -> None:
    first = bpf_programs.load("cil_one", SCHED_CLS, PORT, nth=1000)
    second = bpf_programs.load("other", SCHED_CLS, PORT)
    with attached(first, second):
        found = drops(traced(watch))
        assert len(found) == second.dropped + first.dropped > 0
        assert {tuple(each.number for each in drop.candidates) for drop in found} == {(first.number, second.number)}
        assert not any(drop.program for drop in found)


def test_a_program_that_is_replaced_meanwhile(watch: Watch) -> None:
    """Whatever is named dropped the packet: never more named drops than the program has counted, and no drop is left out."""
    first, second = (bpf_programs.load(name, SCHED_CLS, PORT) for name in ("cil_old", "cil_new"))

    def replace() -> None:
        send()
        bpf_programs.detach_tc(POD.host_end)
        bpf_programs.attach_tc(POD.host_end, second)
        send()

    with attached(first):
        found = drops(traced(watch, replace))
        assert len(found) == first.dropped + second.dropped > 0
        named = [drop.program.number for drop in found if drop.program]
        assert named.count(first.number) <= first.dropped and named.count(second.number) <= second.dropped
        assert all(drop.candidates for drop in found)
        second.close()


def test_no_program(watch: Watch) -> None:
    """The healthy twin: a program that drops nothing."""
    program = bpf_programs.load("cil_from_container", SCHED_CLS, PORT, nth=100_000)
    with attached(program):
        found = traced(watch)
        assert len(found) == PACKETS == program.seen and not drops(found) and not program.dropped
        assert findings(found) == []


@pytest.mark.parametrize("explains", [True, False])
def test_a_capture_has_the_names(recorder: Recorder, explains: bool) -> None:
    program = bpf_programs.load("cil_from_container", SCHED_CLS, PORT)
    with attached(program):
        made = recorder(f"programs-{explains}", send, FILTER, explains=explains)
        dropped = program.dropped
    if explains:
        check_same_output(made)
        assert " ".join(made.text.read_text().split()).count("eBPF program cil_from_contai") >= dropped > 0
        assert made.json.read_text().count('"point":"tc ingress"') >= dropped
    else:
        printed = replayed(made.files[0])
        reasons = printed.count("=> DROPPED by eBPF") + printed.count("=> DROPPED at tc")
        assert reasons == dropped > 0 and printed.count("eBPF program cil_from_contai") >= dropped


def replayed(path: Path) -> str:
    """What a replay prints, with one blank between words."""
    done = read(path)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def loaded(name: str, attach_type: int, nth: int = 3) -> TestProgram:
    return bpf_programs.load(name, CGROUP_SKB, PORT, nth, attach_type)


def test_cgroup_egress(watch: Watch) -> None:
    needs_cgroups(watch)
    kind = bpf_syscall.CGROUP_INET_EGRESS
    program = loaded("sd_fw_egress", kind)
    with cgroup("k8snet-test") as directory, at_cgroup(directory, kind, program):
        sock = made_in(directory, POD.name)
        found = traced(watch, lambda: send_from(sock, topology.GATEWAY4))
        check_named(
            found, program, "by eBPF program sd_fw_egress (id {}) at cgroup egress of /k8snet-test, named as by systemd"
        )
        assert len(found) == PACKETS and findings(found) == [("dropped_by_program", True)]


def test_cgroup_ingress(watch: Watch) -> None:
    needs_cgroups(watch)
    kind = bpf_syscall.CGROUP_INET_INGRESS
    program = loaded("sd_fw_ingress", kind)
    with cgroup("k8snet-test") as directory, at_cgroup(directory, kind, program), made_in(directory, None) as sock:
        sock.bind((topology.GATEWAY4, PORT))
        found = traced(watch)
        check_named(
            found,
            program,
            "by eBPF program sd_fw_ingress (id {}) at cgroup ingress of /k8snet-test, named as by systemd, unless memory was"
            " short or a security module refused it",
        )
        assert len(found) == PACKETS
        assert [p.outcome for p in found].count(Outcome.DELIVERED) == PACKETS - program.dropped


def test_a_socket_with_a_filter_of_its_own(watch: Watch) -> None:
    """Its filter takes all, but that is not known: the program is a candidate."""
    needs_cgroups(watch)
    kind = bpf_syscall.CGROUP_INET_INGRESS
    program = loaded("other", kind)
    with cgroup("k8snet-test") as directory, at_cgroup(directory, kind, program), made_in(directory, None) as sock:
        accept_all = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 65535))
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(accept_all)))
        sock.bind((topology.GATEWAY4, PORT))
        check_candidate(traced(watch), program, AttachPoint.CGROUP_INGRESS)


def test_programs_of_several_cgroups(watch: Watch) -> None:
    """One at the root of the hierarchy and one at the socket's cgroup: none is chosen. A third is at another cgroup."""
    needs_cgroups(watch)
    kind = bpf_syscall.CGROUP_INET_EGRESS
    upper, lower, other = loaded("upper", kind, 1000), loaded("lower", kind), loaded("other", kind)
    with (
        cgroup("k8snet-test") as directory,
        cgroup("k8snet-other") as elsewhere,
        at_cgroup(CGROUPS, kind, upper),
        at_cgroup(directory, kind, lower),
        at_cgroup(elsewhere, kind, other),
    ):
        sock = made_in(directory, POD.name)
        found = drops(traced(watch, lambda: send_from(sock, topology.GATEWAY4)))
    assert len(found) == lower.dropped == PACKETS // 3 and not upper.dropped and not other.seen
    assert {frozenset((each.number, each.cgroup) for each in drop.candidates) for drop in found} == {
        frozenset({(upper.number, "/"), (lower.number, "/k8snet-test")})
    }
    assert not any(drop.program for drop in found)


@contextmanager
def netkit(policy: str = "") -> Iterator[None]:
    """A pair with its primary end nk-a on the node, and nk-b in the pod. policy: of the primary end."""
    try:
        run(f"ip link add nk-a type netkit {policy} peer name nk-b")
    except subprocess.CalledProcessError as e:
        pytest.skip(f"no netkit here: {e.stderr}")
    try:
        run(f"ip link set nk-b netns {POD.name}")
        run(f"ip addr add {NETKIT_NODE}/24 dev nk-a && ip link set nk-a up")
        run(f"ip -n {POD.name} addr add {NETKIT_POD}/24 dev nk-b && ip -n {POD.name} link set nk-b up")
        yield
    finally:
        run("ip link del nk-a")


def run(command: str) -> None:
    subprocess.run(command, shell=True, check=True, capture_output=True, text=True)


@pytest.mark.parametrize("to_pod", [False, True], ids=["to the primary end", "to the peer"])
def test_netkit(watch: Watch, to_pod: bool) -> None:
    kind = bpf_syscall.NETKIT_PRIMARY if to_pod else bpf_syscall.NETKIT_PEER
    with netkit():
        program = bpf_programs.load("cil_from_netkit", SCHED_CLS, PORT, attach_type=kind)
        link = bpf_programs.attach_tcx("nk-a", program, kind)
        try:
            found = traced(watch, lambda: send(to_pod=to_pod, address=NETKIT_POD if to_pod else NETKIT_NODE))
        finally:
            os.close(link)
    end = "nk-b" if to_pod else "nk-a"
    text = "by eBPF program cil_from_netkit (id {}) at netkit of %s, named as by Cilium, unless memory was short"
    check_named(found, program, text % end)
    assert len(found) == PACKETS and findings(found) == [("dropped_by_program", True)]


def test_the_policy_of_netkit(watch: Watch) -> None:
    """Without a program, the pair's policy drops all."""
    with netkit("blackhole"):
        found = drops(traced(watch, lambda: send(to_pod=True, address=NETKIT_POD)))
    assert [each.text for each in found] == ["by netkit's default policy at netkit of nk-b, unless memory was short"] * PACKETS


def test_netkit_with_an_end_that_is_down(watch: Watch) -> None:
    """The kernel drops the packets before any program runs: none is named."""
    with netkit():
        program = bpf_programs.load("cil_from_netkit", SCHED_CLS, PORT, nth=1, attach_type=bpf_syscall.NETKIT_PEER)
        link = bpf_programs.attach_tcx("nk-a", program, bpf_syscall.NETKIT_PEER)
        try:
            run(f"ip -n {POD.name} link set nk-b down")
            with ProgramWatcher() as programs, watch(FILTER, programs=programs) as seen:
                send(to_pod=True, address=NETKIT_POD)
        finally:
            os.close(link)
    assert not drops(seen.packets) and not program.seen


@pytest.mark.parametrize("at_root", [False, True], ids=["its cgroup", "root"])
def test_an_address_that_is_replaced_at_connect(watch: Watch, at_root: bool) -> None:
    """SYN and answer show what the socket asked for, and only of sockets that asked for another address."""
    kind = bpf_syscall.CONNECT_TYPES["connect4"]
    with entered(POD.name):
        server = socket.create_server((POD.addr4, PORT))
    with server, cgroup("k8snet-test") as directory:
        program = bpf_programs.load_replacing("cil_sock4_connect", kind, "10.96.99.99", POD.addr4)
        number = bpf_syscall.program_info(program).number
        link = bpf_programs.attach_at(CGROUPS if at_root else directory, program, kind)
        socks = [made_in(each, None, socket.SOCK_STREAM) for each in (directory, directory, directory, CGROUPS)]
        try:
            (result,) = [each for each in doctor.gather(load=None) if each.subject == "connect()"]
            with ProgramWatcher() as programs, watch(FILTER, programs=programs) as seen:
                for sock in socks[:2]:
                    sock.connect(("10.96.99.99", PORT))
                    assert sock.getpeername() == (POD.addr4, PORT)
                for sock in socks[2:]:
                    sock.connect((POD.addr4, PORT))
        finally:
            for sock in socks:
                sock.close()
            os.close(link)
            os.close(program)
    where = "/" if at_root else "/k8snet-test"
    assert result.state == "degraded" and f"eBPF program cil_sock4_conne (id {number})" in result.text
    assert f"(connect4 of {where}, named as by Cilium)" in result.text
    found = {flags: [facts_of(p) for p in seen.packets if p.tcp_flags == flags] for flags in ("SYN", "SYN ACK", "ACK")}
    print(found)
    named = f"by eBPF program cil_sock4_conne (id {number}) at connect4 of /, named as by Cilium"
    candidate = (
        f"at connect4 of /k8snet-test, candidate eBPF program cil_sock4_conne (id {number}) (named as by Cilium): what was"
        " attached at that moment is not known"
    )
    changed = {"changed": named if at_root else candidate} if has_cgroups(watch) else {}
    replaced = [{"asked": f"10.96.99.99:{PORT}", **changed}]
    assert found["SYN"] == found["SYN ACK"] == [replaced, replaced, [], []]
    assert not any(found["ACK"])


def test_a_program_that_refuses_a_packet_instead_of_the_search_for_its_socket(watch: Watch) -> None:
    """The kernel's reason is that of a packet without a socket; the doctor says that a program may refuse packets."""
    with entered(None):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.bind((topology.GATEWAY4, PORT))
        program = bpf_programs.load_refusing("cil_lookup", SK_LOOKUP, bpf_syscall.SK_LOOKUP)
        link = bpf_programs.attach_at(Path("/proc/self/ns/net"), program, bpf_syscall.SK_LOOKUP)
        try:
            (result,) = [each for each in doctor.gather(load=None) if each.subject == "sk_lookup"]
            found = traced(watch)
        finally:
            os.close(link)
            os.close(program)
    assert result.state == "degraded" and "eBPF program cil_lookup (id " in result.text
    # Before 5.17 a datagram without a socket is dropped without a reason.
    outcome = Outcome.REFUSED if watch.kernel.drop_reasons() else Outcome.DROPPED
    assert len(found) == PACKETS and {p.outcome for p in found} == {outcome}
    assert {p.drop.reason for p in found if p.drop} <= {"NO_SOCKET", ""} and not drops(found)
