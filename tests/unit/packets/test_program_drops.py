# SPDX-License-Identifier: Apache-2.0
"""Which program dropped a packet: never a wrong one, never one of several."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Sequence

import pytest

from tests.support.builders import FUNCTIONS, NODE, REASONS, Names, Owners, Trail
from tests.unit.events.test_decision_detail import row
from tracer.events.record import DROP_FILTERED, DROP_LOOKUP
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramAction, ProgramPeriod
from tracer.model.hop import DetailHop, DropHop
from tracer.model.packet import Outcome, Packet
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.packets.program_drops import PLACES, place_of, program_drop

CILIUM = AttachedProgram("tc", 42, "cil_from_container", "ab", "Cilium", "pin", "/sys/fs/bpf/cilium/x")
OTHER = AttachedProgram("tcx", 43, "other")
INGRESS = PLACES[0]


@pytest.mark.parametrize(
    ("reason", "function", "point", "is_doubtful"),
    [
        ("TC_INGRESS", "__netif_receive_skb_core", AttachPoint.TC_INGRESS, False),
        ("TC_EGRESS", "__dev_queue_xmit", AttachPoint.TC_EGRESS, False),
        ("NOT_SPECIFIED", "netif_receive_generic_xdp", AttachPoint.XDP, False),
        ("NOT_SPECIFIED", "do_xdp_generic", AttachPoint.XDP, False),
        ("", "netif_receive_generic_xdp", AttachPoint.XDP, False),
        ("", "do_xdp_generic.part.0", AttachPoint.XDP, True),
        ("XDP", "do_xdp_generic", AttachPoint.XDP, True),
        ("NOT_SPECIFIED", "veth_xdp_rcv_skb", AttachPoint.XDP, False),
        ("", "__netif_receive_skb_core.constprop.0", AttachPoint.TC_INGRESS, True),
        ("", "__dev_queue_xmit", AttachPoint.TC_EGRESS, True),
        ("NOT_SPECIFIED", "netkit_xmit", AttachPoint.NETKIT, False),
        ("BPF_CGROUP_EGRESS", "ip_finish_output", AttachPoint.CGROUP_EGRESS, False),
        ("SOCKET_FILTER", "udp_queue_rcv_one_skb", AttachPoint.CGROUP_INGRESS, False),
    ],
)
def test_rows(reason: str, function: str, point: AttachPoint, is_doubtful: bool) -> None:
    row = place_of(reason, function)
    assert row and (row.point, bool(row.doubt)) == (point, is_doubtful)


@pytest.mark.parametrize(
    ("reason", "function"),
    [
        ("NETFILTER_DROP", "nf_hook_slow"), ("NO_SOCKET", "tcp_v4_rcv"), ("", "ip_rcv"), ("", ""),
        ("UNHANDLED_PROTO", "__netif_receive_skb_core"), ("NOT_SPECIFIED", "__netif_receive_skb_core"),
        ("QDISC_DROP", "__dev_queue_xmit"),
    ],
)  # fmt: skip
def test_drops_of_others(reason: str, function: str) -> None:
    assert place_of(reason, function) is None


def at(time: int, *periods: ProgramPeriod) -> ProgramAction:
    found = program_drop(INGRESS, "eth0", time, periods)
    assert found
    return found


def test_the_only_program_is_named() -> None:
    found = at(50, ProgramPeriod(10, 0, (CILIUM,)))
    assert found.program is CILIUM and not found.doubt
    assert found.text == "by eBPF program cil_from_container (id 42) at tc ingress of eth0, loaded by Cilium"


def test_of_several_programs_none_is_named() -> None:
    found = at(50, ProgramPeriod(10, 0, (CILIUM, OTHER)))
    assert found.program is None and found.candidates == (CILIUM, OTHER)
    assert found.text == (
        "at tc ingress of eth0, 2 candidates: eBPF program cil_from_container (id 42) (loaded by Cilium),"
        " eBPF program other (id 43) (loader unknown); which of them is not known"
    )


def test_the_period_of_the_drop_counts() -> None:
    periods = ProgramPeriod(10, 20, (CILIUM,)), ProgramPeriod(30, 40, ()), ProgramPeriod(45, 0, (OTHER,))
    assert at(10, *periods).program is CILIUM and at(20, *periods).program is CILIUM
    assert at(45, *periods).program is OTHER and at(1000, *periods).program is OTHER
    nothing = at(35, *periods)
    assert nothing.program is None and nothing.text == "at tc ingress of eth0, program unknown: none was attached there"


@pytest.mark.parametrize(
    ("time", "candidates"),
    [(5, (CILIUM,)), (25, (CILIUM, OTHER)), (45, (OTHER,))],
)
def test_a_drop_between_two_periods(time: int, candidates: tuple[AttachedProgram, ...]) -> None:
    found = at(time, ProgramPeriod(10, 20, (CILIUM,)), ProgramPeriod(30, 40, (OTHER,)))
    assert found.program is None and found.candidates == candidates and "not known" in found.doubt


def test_where_only_the_function_is_known_the_program_is_a_candidate() -> None:
    row = place_of("", "__dev_queue_xmit")
    assert row
    found = program_drop(row, "eth0", 50, [ProgramPeriod(10, 0, (CILIUM,))])
    assert found and found.program is None and found.candidates == (CILIUM,)
    program = "candidate eBPF program cil_from_container (id 42) (loaded by Cilium)"
    assert found.text == f"at tc egress of eth0, {program}: this kernel gives no reason"
    assert program_drop(row, "eth0", 50, [ProgramPeriod(10, 0, ())]) is None, "most of these drops have another cause"


def test_what_else_may_have_freed_the_packet_is_said() -> None:
    row = place_of("NOT_SPECIFIED", "do_xdp_generic")
    assert row
    found = program_drop(row, "eth0", 50, [ProgramPeriod(10, 0, (AttachedProgram("XDP generic", 7, "filter"),))])
    assert found and found.text == "by eBPF program filter (id 7) at XDP of eth0, loader unknown, unless memory was short"


def test_a_filter_of_tc() -> None:
    found = at(50, ProgramPeriod(10, 0, (AttachedProgram("tc filter", 0, "flower pref 10"),)))
    assert found.text == "by tc filter flower pref 10 at tc ingress of eth0"


def test_a_classifier() -> None:
    program = AttachedProgram("tc classifier", 9, "cls", holder="my-agent (pid 3)")
    text = "by eBPF classifier cls (id 9) at tc ingress of eth0, held by my-agent (pid 3)"
    assert at(50, ProgramPeriod(10, 0, (program,))).text == text


class Programs:
    """Programs of an invented machine; notes what was asked."""

    def __init__(self, *periods: ProgramPeriod) -> None:
        self.periods_there, self.asked = periods, list[tuple[int, int, AttachPoint, int]]()

    def periods(self, netns: int, ifindex: int, point: AttachPoint, time: int) -> Sequence[ProgramPeriod] | None:
        self.asked.append((netns, ifindex, point, time))
        return self.periods_there


def dropped(
    programs: Programs, ifindex: int = 2, reason: str = "TC_INGRESS", cgroup: int = 0, is_filtered: bool = False
) -> Packet:
    """A packet that the first program of this machine's eth0, or of a cgroup, drops."""
    reasons, functions = REASONS | {77: reason}, FUNCTIONS | {0x77: "__netif_receive_skb_core"}
    hops = HopBuilder(Names(), Owners(), reasons, lambda address: functions.get(address, ""), programs=programs)
    trail = Trail(("10.244.0.9", 40000, "10.244.0.11", 8080))
    trail.add("DROP", in_ifindex=ifindex, in_name="eth0", reason=77, object=0x77,
              table=cgroup.to_bytes(8, sys.byteorder), manip=is_filtered * DROP_FILTERED)  # fmt: skip
    assembler = PacketAssembler(hops)
    assembler.feed(trail.batch)
    (found,) = assembler.flush()
    return found


def test_the_verdict_names_the_program() -> None:
    programs = Programs(ProgramPeriod(10, 0, (CILIUM,)))
    packet = dropped(programs)
    assert packet.verdict == "DROPPED by eBPF program cil_from_container (id 42) at tc ingress of eth0, loaded by Cilium"
    assert packet.outcome is Outcome.DROPPED and len(programs.asked) == 1
    assert programs.asked[0][:3] == (NODE, 2, AttachPoint.TC_INGRESS)
    (hop,) = packet.hops
    assert isinstance(hop, DropHop) and hop.drop.program and hop.drop.program.program is CILIUM


def test_without_an_answer_the_verdict_has_reason_and_function() -> None:
    assert dropped(Programs()).verdict == "DROPPED in __netif_receive_skb_core: TC_INGRESS"
    without_interface = Programs(ProgramPeriod(10, 0, (CILIUM,)))
    assert dropped(without_interface, 0).verdict == "DROPPED in __netif_receive_skb_core: TC_INGRESS"
    assert not without_interface.asked


SYSTEMD = AttachedProgram("cgroup", 7, "sd_fw_egress", loader="systemd", loader_evidence="process", cgroup="/system.slice")
ROOT = AttachedProgram("cgroup", 8, "other", cgroup="/")


def test_the_reason_proves_a_program_of_the_cgroup_that_sent_the_packet() -> None:
    programs = Programs(ProgramPeriod(10, 0, (SYSTEMD,)))
    packet = dropped(programs, reason="BPF_CGROUP_EGRESS", cgroup=0x1F00000A)
    assert packet.verdict == "DROPPED by eBPF program sd_fw_egress (id 7) at cgroup egress of /system.slice, loaded by systemd"
    assert programs.asked[0][:3] == (0, 0x1F00000A, AttachPoint.CGROUP_EGRESS)


def test_of_several_programs_of_cgroups_each_has_its_cgroup() -> None:
    packet = dropped(Programs(ProgramPeriod(10, 0, (SYSTEMD, ROOT))), reason="BPF_CGROUP_EGRESS", cgroup=10)
    assert packet.verdict == (
        "DROPPED at cgroup egress, 2 candidates: eBPF program sd_fw_egress (id 7) of /system.slice (loaded by systemd), eBPF"
        " program other (id 8) of / (loader unknown); which of them is not known"
    )


def test_a_socket_that_refuses_a_packet() -> None:
    """A program of its cgroup, unless the socket has a filter of its own; without a program there, nothing is said of one."""
    named = dropped(Programs(ProgramPeriod(10, 0, (ROOT,))), reason="SOCKET_FILTER", cgroup=10)
    assert named.verdict == (
        "DROPPED by eBPF program other (id 8) at cgroup ingress of /, loader unknown, unless memory was short or a security"
        " module refused it"
    )
    filtered = dropped(Programs(ProgramPeriod(10, 0, (ROOT,))), reason="SOCKET_FILTER", cgroup=10, is_filtered=True)
    assert filtered.verdict == (
        "DROPPED at cgroup ingress of /, candidate eBPF program other (id 8) (loader unknown): or the socket's own filter did"
    )
    without = dropped(Programs(ProgramPeriod(10, 0, ())), reason="SOCKET_FILTER", cgroup=10)
    assert without.verdict == "DROPPED in __netif_receive_skb_core: SOCKET_FILTER"


@pytest.mark.parametrize("reason", ["BPF_CGROUP_EGRESS", "SOCKET_FILTER"])
def test_without_a_cgroup_nothing_is_asked(reason: str) -> None:
    programs = Programs(ProgramPeriod(10, 0, (ROOT,)))
    assert dropped(programs, reason=reason).verdict == f"DROPPED in __netif_receive_skb_core: {reason}"
    assert not programs.asked


def test_the_policy_of_netkit() -> None:
    """With one program, what the program may have left to the policy; with more, all are candidates; alone, it drops all."""
    place = place_of("NOT_SPECIFIED", "netkit_xmit")
    assert place
    program, policy = AttachedProgram("netkit peer", 5, "cil_from_container"), AttachedProgram("netkit policy", 0, "drop")

    def text(*candidates: AttachedProgram) -> str:
        found = program_drop(place, "nk-a", 50, [ProgramPeriod(10, 0, candidates)])
        return found.text if found else ""

    named = "by eBPF program cil_from_container (id 5) at netkit of nk-a, loader unknown, unless memory was short"
    assert text(program) == named
    assert text(program, policy) == f"{named} or it left the packet to the pair's policy, which drops"
    assert text(policy) == "by netkit's default policy at netkit of nk-a, unless memory was short"
    assert text(program, OTHER, policy).startswith("at netkit of nk-a, 3 candidates: ")
    assert text() == ""


LOOKUP = AttachedProgram("sk_lookup", 16, "cil_lookup", loader="Cilium", loader_evidence="pin")


def refused(programs: Programs, manip: int = DROP_LOOKUP, reason: str = "NO_SOCKET") -> Packet:
    """A packet without a socket. manip: whether a program of sk_lookup refused it."""
    names = REASONS | {77: reason}
    hops = HopBuilder(Names(), Owners(), names, lambda address: "tcp_v4_rcv", programs=programs)
    trail = Trail(("10.244.0.9", 40000, "10.244.0.11", 8080))
    trail.add("DROP", in_ifindex=2, in_name="eth0", reason=77, object=0x77, manip=manip)
    assembler = PacketAssembler(hops)
    assembler.feed(trail.batch)
    (found,) = assembler.flush()
    return found


def test_a_program_of_sk_lookup_that_refuses_a_packet() -> None:
    programs = Programs(ProgramPeriod(10, 0, (LOOKUP,)))
    packet = refused(programs)
    assert packet.outcome is Outcome.REFUSED
    assert packet.verdict == "REFUSED by eBPF program cil_lookup (id 16) at sk_lookup, loaded by Cilium"
    assert programs.asked[0][:3] == (NODE, 0, AttachPoint.SK_LOOKUP), "the programs of the namespace"
    several = refused(Programs(ProgramPeriod(10, 0, (LOOKUP, OTHER))))
    assert several.outcome is Outcome.REFUSED and "at sk_lookup, 2 candidates: eBPF program cil_lookup" in several.verdict
    unread = refused(Programs())
    assert unread.verdict == "REFUSED at sk_lookup, program unknown: what is attached could not be read"


def test_a_packet_without_a_socket_that_no_program_refused() -> None:
    programs = Programs(ProgramPeriod(10, 0, (LOOKUP,)))
    packet = refused(programs, manip=0)
    assert packet.outcome is Outcome.REFUSED and packet.verdict.startswith("no listener") and not programs.asked
    other = refused(programs, reason="XFRM_POLICY")
    assert other.outcome is Outcome.DROPPED and not programs.asked, "it was dropped for another reason"


@pytest.mark.parametrize(
    ("periods", "chosen"),
    [
        ((ProgramPeriod(10, 0, (LOOKUP,)),), "by eBPF program cil_lookup (id 16) at sk_lookup, loaded by Cilium"),
        ((), "at sk_lookup, program unknown: what is attached could not be read"),
    ],
)
def test_a_chosen_socket(periods: tuple[ProgramPeriod, ...], chosen: str) -> None:
    programs = Programs(*periods)
    hops = HopBuilder(Names(), Owners(), REASONS, lambda address: "", programs=programs)
    trail = Trail(("10.244.0.9", 40000, "10.244.0.11", 80)).hook("INPUT")
    detail = row("LOOKUP", struct.unpack("=4I", socket.inet_pton(socket.AF_INET6, "::ffff:0.0.0.0")), state=2, spare=8080)
    for name in ("packet", "time", "hop"):
        detail[name] = getattr(trail, name)
    detail["netns"] = NODE
    trail.rows.append(detail)
    assembler = PacketAssembler(hops)
    assembler.feed(trail.batch)
    hop = assembler.flush()[0].hops[-1]
    assert isinstance(hop, DetailHop) and hop.detail.what == "lookup" and hop.is_decisive
    assert hop.detail.facts == {"socket": "0.0.0.0:8080", "chosen": chosen}
    assert programs.asked[0][:3] == (NODE, 0, AttachPoint.SK_LOOKUP)


def connected(programs: Programs, cgroup: int = 10, family: int = 2, at_sendmsg: int = 0) -> DetailHop:
    """The detail of a packet of which the socket asked for 10.96.0.10:443."""
    hops = HopBuilder(Names(), Owners(), REASONS, lambda address: "", programs=programs)
    trail = Trail(("10.244.0.9", 40000, "10.244.0.11", 8443)).hook("OUTPUT")
    values = struct.unpack("=4I", socket.inet_pton(socket.AF_INET6, "::ffff:10.96.0.10"))
    detail = row("CONNECT", values, object=cgroup, state=family, status=at_sendmsg, spare=443)
    for name in ("packet", "time", "hop"):
        detail[name] = getattr(trail, name)
    trail.rows.append(detail)
    assembler = PacketAssembler(hops)
    assembler.feed(trail.batch)
    (found,) = assembler.flush()
    hop = found.hops[-1]
    assert isinstance(hop, DetailHop)
    return hop


def test_an_address_that_a_program_replaced() -> None:
    program = AttachedProgram("cgroup", 12, "cil_sock4_connec", loader="Cilium", loader_evidence="pin", cgroup="/")
    programs = Programs(ProgramPeriod(10, 0, (program,)))
    assert connected(programs).detail.facts == {
        "asked": "10.96.0.10:443",
        "changed": "by eBPF program cil_sock4_connec (id 12) at connect4 of /, loaded by Cilium",
    }
    assert programs.asked[0][:3] == (0, 10, AttachPoint.CONNECT4)
    changed = connected(Programs(ProgramPeriod(10, 0, (program, ROOT)))).detail.facts["changed"]
    assert str(changed).startswith("at connect4 of /, 2 candidates: eBPF program cil_sock4_connec (id 12) (loaded by Cilium), ")
    assert connected(Programs()).detail.facts == {"asked": "10.96.0.10:443"}, "nothing is known of the program"
    assert connected(programs, cgroup=0).detail.facts == {"asked": "10.96.0.10:443"}


@pytest.mark.parametrize("family", [2, 10])
def test_an_address_that_a_program_replaced_at_sendmsg(family: int) -> None:
    program = AttachedProgram("cgroup", 12, "cil_sock", loader="Cilium", loader_evidence="pin", cgroup="/")
    programs, version = Programs(ProgramPeriod(10, 0, (program,))), 6 if family == 10 else 4
    changed = connected(programs, family=family, at_sendmsg=1).detail.facts["changed"]
    assert changed == f"by eBPF program cil_sock (id 12) at sendmsg{version} of /, loaded by Cilium"
    assert programs.asked[0][:3] == (0, 10, AttachPoint[f"SENDMSG{version}"])
