# SPDX-License-Identifier: Apache-2.0
"""What a queue (NFQUEUE) did with a packet, as text: its decision details."""

from __future__ import annotations

import errno

from tracer.model.hop import QUEUE_ANSWER, QUEUE_REFUSED, DecisionDetail
from tracer.model.netfilter import AnyVerdict, decode_verdict
from tracer.util.duration_format import format_duration

PROCESS, ENDED, INTERFACE_DOWN, RULES_REMOVED = "process", "process ended", "interface down", "rules removed"
"""Who gave a packet back: the process, or the kernel for it."""
QUEUE_FULL, BUFFER_FULL, NO_PROCESS = "queue full", "receive buffer full", "no process"
"""Why a queue did not take a packet."""

_EMPTIED = {
    ENDED: "its process ended or let go of it",
    INTERFACE_DOWN: "an interface went down",
    RULES_REMOVED: "rules of the hook were removed",
}


def is_of_queue(detail: DecisionDetail) -> bool:
    """Whether a decision detail is of a queue."""
    return detail.what in (QUEUE_ANSWER, QUEUE_REFUSED)


def reason_of(detail: DecisionDetail) -> str:
    """Who gave the packet back, or why it was not taken; "" = not known."""
    return str(detail.facts.get("by", ""))


def verdict_of(detail: DecisionDetail) -> AnyVerdict:
    """The verdict with which the packet goes on; NONE = it was not taken, and the rule decides."""
    return decode_verdict(str(detail.facts.get("verdict", "")))


def format_queue(detail: DecisionDetail) -> str:
    """The name of the queue."""
    return f"queue {detail.number('queue')}"


def format_process(detail: DecisionDetail) -> str:
    """The process that answered, as of an answer by a process."""
    return f"pid {detail.number('pid')} {detail.facts.get('process', '')}".rstrip()


def format_room(detail: DecisionDetail) -> str:
    """How full a queue is; "" = not known."""
    maximum = detail.number("maximum")
    waiting = detail.number("waiting")
    return f"{waiting} packet{'s' * (waiting != 1)} wait{'s' * (waiting == 1)}, maximum {maximum}" if maximum else ""


def format_detail(detail: DecisionDetail) -> str:
    """What the queue did, without its name."""
    by = reason_of(detail)
    if detail.what == QUEUE_REFUSED:
        return _format_refusal(detail, by)
    answer, after = detail.facts.get("verdict", ""), f"after {format_duration(detail.number('waited_ns'))}"
    if by == PROCESS:
        return f"{format_process(detail)} answered {answer} {after}"
    if by in _EMPTIED:
        return f"emptied by the kernel {after}: {_EMPTIED[by]}"
    if by in (QUEUE_FULL, BUFFER_FULL):
        return f"{_format_full(by)}: let pass without an answer (fail-open)"
    return f"given back with {answer} {after}, by whom is not known"


def _format_refusal(detail: DecisionDetail, by: str) -> str:
    if by == NO_PROCESS:
        return "no process listens"
    if by:
        room = format_room(detail) if by == QUEUE_FULL else ""
        return f"{_format_full(by)}{room and f': {room}'}"
    number = detail.number("errno")
    return f"does not take it: {errno.errorcode.get(number, f'error {number}')}"


def _format_full(by: str) -> str:
    return "full" if by == QUEUE_FULL else "the receive buffer of its process is full"
