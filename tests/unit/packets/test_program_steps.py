# SPDX-License-Identifier: Apache-2.0
"""Which eBPF program redirected or rewrote a packet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO

import numpy as np
import pytest

from tests.support.builders import NODE, Names, Owners, Trail
from tracer.capture.record.prefetch import ask_of_programs
from tracer.events.record import Flag
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramPeriod
from tracer.model.hop import HookHop, NatHop, RedirectHop
from tracer.model.packet import Outcome, Packet
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder
from tracer.packets.program_drops import CHANGED, NONE
from tracer.packets.program_steps import NO_PLACE
from tracer.render.text import TextOutput

CILIUM = AttachedProgram("tc", 42, "cil_from_container", loader="Cilium", loader_evidence="pin")
OTHER = AttachedProgram("tcx", 43, "other")
XDP = AttachedProgram("XDP generic", 7, "balancer")
ENDS = ("10.244.0.9", 40000, "10.96.0.10", 80)
INGRESS, EGRESS, BY_XDP = 1, 2, 3
TO_ETH0: dict[str, object] = {"in_ifindex": 2, "in_name": "eth0"}
NEW_ENDS = ("10.244.0.9", 40000, "10.244.0.11", 8080)


class Machine:
    """Programs of an invented machine by interface and place; notes what was asked."""

    def __init__(self, attached: Mapping[tuple[int, AttachPoint], tuple[AttachedProgram, ...]], since: int = 1) -> None:
        self.attached, self.since, self.asked = attached, since, list[tuple[int, int, AttachPoint]]()

    def periods(self, netns: int, ifindex: int, point: AttachPoint, time: int) -> Sequence[ProgramPeriod] | None:
        self.asked.append((netns, ifindex, point))
        return (ProgramPeriod(self.since, 0, self.attached.get((ifindex, point), ())),)


def at(point: AttachPoint, *programs: AttachedProgram, ifindex: int = 2) -> Machine:
    return Machine({(ifindex, point): programs})


def packet(trail: Trail, machine: Machine | None) -> Packet:
    assembler = PacketAssembler(HopBuilder(Names(), Owners(), {}, lambda address: "", programs=machine))
    assembler.feed(trail.batch)
    (found,) = assembler.flush()
    return found


def redirected(machine: Machine | None, state: int = INGRESS, **fields: object) -> tuple[Packet, RedirectHop]:
    found = packet(Trail(ENDS).add("REDIRECT", state=state, **({"chain": "eth1"} | TO_ETH0 | fields)), machine)
    (hop,) = found.hops
    assert isinstance(hop, RedirectHop)
    return found, hop


def rewrite(state: int = INGRESS, **fields: object) -> Trail:
    """A packet of which the header changed. A REWRITE has the new header in the fields of conntrack, without an entry."""
    trail = Trail(ENDS).add("REWRITE", state=state, **({"orig": NEW_ENDS} | TO_ETH0 | fields))
    trail.rows[-1]["flags"] &= ~np.uint8(Flag.FLAG_HAS_CT)
    return trail.now(header=NEW_ENDS).hook("PREROUTING", **TO_ETH0)


def rewritten(machine: Machine | None, state: int = INGRESS, **fields: object) -> NatHop:
    found = packet(rewrite(state, **fields), machine)
    hop, hook = found.hops
    assert isinstance(hop, NatHop) and isinstance(hook, HookHop) and found.flow is None
    assert found.endpoints.dst == ENDS[2], "the packet has the destination with which it came"
    return hop


NAMED = "by eBPF program cil_from_container (id 42) at tc ingress of eth0, loaded by Cilium"


def test_the_only_program_is_named() -> None:
    machine = at(AttachPoint.TC_INGRESS, CILIUM)
    found, hop = redirected(machine)
    assert found.verdict == f"redirected to eth1, {NAMED}" and found.outcome is Outcome.FORWARDED
    assert machine.asked == [(NODE, 2, AttachPoint.TC_INGRESS)]
    assert hop.redirect.program and hop.redirect.program.program is CILIUM
    out = StringIO()
    TextOutput(out, StringIO()).packet(found)
    assert f"redirect to eth1, {NAMED} (derived)" in " ".join(out.getvalue().split())


@pytest.mark.parametrize(
    ("manip", "text"),
    [
        (1, "to eth1 as received there, "), (2, "to eth1, to a neighbour, "), (4, "to the other end of eth1, "),
        (8, "a copy to eth1, "), (9, "a copy to eth1 as received there, "),
    ],
)  # fmt: skip
def test_how_it_is_redirected(manip: int, text: str) -> None:
    _, hop = redirected(at(AttachPoint.TC_INGRESS, CILIUM), manip=manip)
    assert hop.redirect.text == text + NAMED


def test_an_interface_that_is_not_known() -> None:
    _, hop = redirected(None, chain="")
    assert hop.redirect.text == f"to an unknown interface, at tc ingress of eth0, program unknown: {CHANGED}"
    _, hop = redirected(None, in_ifindex=0, in_name="")
    assert hop.redirect.text == "to eth1, program unknown"


def test_of_several_programs_none_is_chosen() -> None:
    _, hop = redirected(at(AttachPoint.TC_INGRESS, OTHER, CILIUM))
    assert hop.redirect.program and hop.redirect.program.program is None
    assert hop.redirect.program.candidates == (OTHER, CILIUM)


def test_at_egress_the_interface_is_that_which_it_leaves_by() -> None:
    machine = at(AttachPoint.TC_EGRESS, CILIUM, ifindex=5)
    _, hop = redirected(machine, EGRESS, in_ifindex=0, in_name="", out_ifindex=5, out_name="eth5")
    assert hop.redirect.program and hop.redirect.program.place == "tc egress of eth5"
    assert machine.asked == [(NODE, 5, AttachPoint.TC_EGRESS)]


def test_where_the_place_is_not_known_a_program_is_a_candidate() -> None:
    _, hop = redirected(at(AttachPoint.NETKIT, CILIUM), 0)
    assert hop.redirect.program and hop.redirect.program.candidates == (CILIUM,)
    assert hop.redirect.program.doubt == NO_PLACE and hop.redirect.program.point is AttachPoint.NETKIT


def test_without_a_program_there() -> None:
    _, hop = redirected(at(AttachPoint.TC_INGRESS))
    assert hop.redirect.program and not hop.redirect.program.candidates and hop.redirect.program.doubt == NONE


def test_a_program_that_came_later_is_a_candidate() -> None:
    machine = Machine({(2, AttachPoint.TC_INGRESS): (CILIUM,)}, since=1 << 60)
    _, hop = redirected(machine)
    assert hop.redirect.program and hop.redirect.program.candidates == (CILIUM,) and not hop.redirect.program.program


def test_the_kernel_gives_the_program_of_generic_xdp() -> None:
    """Also of several, and one that is not attached any more."""
    for machine in (at(AttachPoint.XDP, XDP), at(AttachPoint.XDP, AttachedProgram("XDP native", 8), XDP), at(AttachPoint.XDP)):
        _, hop = redirected(machine, BY_XDP, object=7)
        program = hop.redirect.program
        assert program and program.is_observed and program.program and program.program.number == 7


def test_a_rewrite_has_both_headers_and_the_program() -> None:
    machine = at(AttachPoint.TC_INGRESS, CILIUM)
    hop = rewritten(machine)
    assert hop.nat.kind == "rewritten" and hop.evidence == "observed"
    assert (hop.nat.before.dst, hop.nat.before.dport, hop.nat.after.dst, hop.nat.after.dport) == (
        "10.96.0.10", 80, "10.244.0.11", 8080,
    )  # fmt: skip
    assert hop.program and hop.program.text == NAMED
    assert machine.asked == [(NODE, 2, AttachPoint.TC_INGRESS), (NODE, 2, AttachPoint.XDP)]


def test_a_rewrite_at_ingress_may_be_that_of_generic_xdp() -> None:
    hop = rewritten(at(AttachPoint.XDP, XDP))
    assert hop.program and hop.program.program is XDP and hop.program.point is AttachPoint.XDP
    both = rewritten(Machine({(2, AttachPoint.XDP): (XDP,), (2, AttachPoint.TC_INGRESS): (CILIUM,)}))
    assert both.program and both.program.candidates == (CILIUM, XDP) and not both.program.program


def test_a_program_of_a_driver_ran_before_and_is_not_blamed() -> None:
    native = AttachedProgram("XDP native", 8, "balancer")
    hop = rewritten(at(AttachPoint.XDP, native))
    assert hop.program is None


def test_a_packet_of_a_vlan_may_have_met_the_programs_of_both_interfaces() -> None:
    machine = Machine({(2, AttachPoint.TC_INGRESS): (CILIUM,), (9, AttachPoint.TC_INGRESS): (OTHER,)})
    hop = rewritten(machine, accept_len=9, chain="eth0.7")
    assert hop.program and hop.program.candidates == (CILIUM, OTHER) and hop.program.place == "tc ingress of eth0"
    other = rewritten(at(AttachPoint.TC_INGRESS, OTHER, ifindex=9), accept_len=9, chain="eth0.7")
    assert other.program and other.program.program is OTHER and other.program.place == "tc ingress of eth0.7"


def test_a_program_at_two_places_is_not_said_to_have_run_at_one() -> None:
    machine = Machine({(2, AttachPoint.TC_INGRESS): (CILIUM,), (9, AttachPoint.TC_INGRESS): (CILIUM,)})
    hop = rewritten(machine, accept_len=9, chain="eth0.7")
    assert hop.program and hop.program.candidates == (CILIUM,) and hop.program.doubt == NO_PLACE


def test_a_rewrite_without_programs_is_shown_without_one() -> None:
    for machine in (at(AttachPoint.TC_INGRESS), None):
        hop = rewritten(machine)
        assert hop.nat.after.dst == "10.244.0.11" and hop.program is None


def test_a_recording_asks_what_the_explanation_asks() -> None:
    live, ahead = at(AttachPoint.TC_INGRESS, CILIUM), at(AttachPoint.TC_INGRESS, CILIUM)
    trail = Trail(ENDS).add("REDIRECT", state=INGRESS, **TO_ETH0).add("REWRITE", state=INGRESS, **TO_ETH0)
    packet(trail, live)
    ask_of_programs(trail.batch, ahead)
    assert set(ahead.asked) == set(live.asked) and len(ahead.asked) == 2
