# SPDX-License-Identifier: Apache-2.0
"""The kernel refuses fentry for a function that every run needs, as if another user of ftrace held it: kprobes are used."""

from __future__ import annotations

import errno
import os

import pytest

from scenes import topology, traffic
from tests.kernel.watching import NOTHING
from tracer.errors import NoProbe
from tracer.kernel import bpf_syscall
from tracer.kernel.session import Announcements, Kernel, Session
from tracer.model.filter import Filter

pytestmark = pytest.mark.thorough


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The errors with which the first attachments by fentry fail; no others are refused."""
    errors: list[int] = []
    attach = bpf_syscall.open_tracing

    def refuse(program: int, tracepoint: str = "") -> int:
        if not tracepoint and errors:
            number = errors.pop()
            raise OSError(number, os.strerror(number))
        return attach(program, tracepoint)

    monkeypatch.setattr(bpf_syscall, "open_tracing", refuse)
    return errors


def test_a_refused_function_is_traced_by_kprobe(node: None, refusal: list[int]) -> None:
    said: list[str] = []
    refusal.append(errno.EBUSY)
    with Session(Kernel.running(), NOTHING, announcements=Announcements(warn=said.append)) as session:
        session.set_filter(Filter(ports=(traffic.NODEPORT_HTTP,)))
        session.drain()
        assert traffic.http_get(topology.NODE4).outcome == "answered"
        assert len(session.events()) > 20
        assert {row.way for row in session.planned} <= {"KPROBE", "KRETPROBE", "RAWTP"}
    (sentence,) = said
    assert "nf_hook_slow" in sentence and os.strerror(errno.EBUSY) in sentence and "kprobe" in sentence


def test_without_the_right_no_other_way_is_tried(node: None, refusal: list[int]) -> None:
    said: list[str] = []
    refusal.append(errno.EPERM)
    with pytest.raises(NoProbe), Session(Kernel.running(), NOTHING, announcements=Announcements(warn=said.append)):
        pass
    assert not said and not refusal
