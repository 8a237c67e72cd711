# SPDX-License-Identifier: Apache-2.0
"""What is asked ahead about drops: the newest drop of each place, and of a cgroup by its id."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from tests.support.builders import NODE, Trail
from tests.unit.events.test_decision_detail import row
from tracer.capture.record.prefetch import ask_of_drops, ask_of_sockets
from tracer.events.record import DROP_LOOKUP
from tracer.model.bpf_program import AttachPoint, ProgramPeriod
from tracer.pipeline.assembly import KernelNames

REASONS = {1: "TC_INGRESS", 2: "BPF_CGROUP_EGRESS", 3: "NETFILTER_DROP", 4: "NO_SOCKET"}


class Programs:
    """Programs of an invented machine; notes what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, AttachPoint]] = []

    def periods(self, netns: int, ifindex: int, point: AttachPoint, time: int) -> Sequence[ProgramPeriod] | None:
        self.asked.append((netns, ifindex, point))
        return ()


def test_places_of_drops() -> None:
    trail = Trail(("10.244.0.9", 40000, "10.244.0.11", 8080))
    for reason, ifindex, cgroup in ((1, 2, 0), (1, 2, 0), (1, 0, 0), (2, 2, 70), (2, 2, 71), (2, 2, 0), (3, 2, 70)):
        trail.add("DROP", in_ifindex=ifindex, reason=reason, object=1, table=cgroup.to_bytes(8, sys.byteorder))
    programs = Programs()
    ask_of_drops(trail.batch, KernelNames(lambda address: "", REASONS), programs)
    assert programs.asked == [
        (NODE, 2, AttachPoint.TC_INGRESS), (0, 70, AttachPoint.CGROUP_EGRESS), (0, 71, AttachPoint.CGROUP_EGRESS),
    ]  # fmt: skip


def test_refusals_by_sk_lookup() -> None:
    trail = Trail(("10.244.0.9", 40000, "10.244.0.11", 8080))
    for manip in (0, DROP_LOOKUP, DROP_LOOKUP):
        trail.add("DROP", in_ifindex=2, reason=4, object=1, manip=manip)
    programs = Programs()
    ask_of_drops(trail.batch, KernelNames(lambda address: "", REASONS), programs)
    assert programs.asked == [(NODE, 0, AttachPoint.SK_LOOKUP)]


def test_chosen_sockets() -> None:
    programs = Programs()
    ask_of_sockets(np.concatenate([row("LOOKUP", netns=NODE, state=2, spare=80) for _ in range(2)]), programs)
    assert programs.asked == [(NODE, 0, AttachPoint.SK_LOOKUP)]


def test_replaced_addresses() -> None:
    rows = [row("CONNECT", object=70, state=2, time=5), row("CONNECT", object=70, state=2, time=6)]
    rows += [row("CONNECT", object=70, state=10), row("CONNECT", state=2), row("ROUTE", (22,), object=71)]
    rows += [row("CONNECT", object=70, state=family, status=1) for family in (2, 10)]
    programs = Programs()
    ask_of_sockets(np.concatenate(rows), programs)
    points = AttachPoint.CONNECT4, AttachPoint.CONNECT6, AttachPoint.SENDMSG4, AttachPoint.SENDMSG6
    assert programs.asked == [(0, 70, point) for point in points]
