# SPDX-License-Identifier: Apache-2.0
"""Rules with NFQUEUE and queues to which no process is bound, found without a packet."""

from __future__ import annotations

from tests.support import audits
from tests.support.findings import FakeNode
from tracer.audit import limits
from tracer.audit.nfqueue_unattended import check
from tracer.audit.state import NodeState

RULES = """*filter
:FORWARD ACCEPT [0:0]
:UNREACHED - [0:0]
-A FORWARD -p tcp -j NFQUEUE --queue-num 7
-A FORWARD -p udp -j NFQUEUE --queue-num 8 --queue-bypass
-A FORWARD -p icmp -j NFQUEUE --queue-num 9
-A UNREACHED -j NFQUEUE --queue-num 10
COMMIT
"""


def state(queues: tuple[int, ...] | None) -> NodeState:
    return audits.of_text(RULES, node=FakeNode(queues=queues))


def test_reachable_rules_without_bypass() -> None:
    (finding,) = check(state((9,)))
    assert finding.certain and "in filter/FORWARD hands packets to queue 7 (NFQUEUE, without bypass)" in finding.cause
    assert [p.what for p in finding.proofs] == ["rule", "process"]


def test_all_queues_have_a_process() -> None:
    assert list(check(state((7, 9)))) == []


def test_queues_that_cannot_be_read() -> None:
    assert [f.certain for f in check(state(None))] == [False, False]
    assert ("nfqueue_unattended", "the queues with a process cannot be read") in limits(state(None))
    assert "nfqueue_unattended" not in {name for name, _ in limits(state(()))}
