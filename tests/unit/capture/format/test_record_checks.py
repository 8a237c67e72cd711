# SPDX-License-Identifier: Apache-2.0
"""Each answer that a recording writes about flannel's leases is read; an answer of another type counts as not readable."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tracer.capture.format.codec import pack, to_json
from tracer.capture.format.schema import Record, crc
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.environment import ReplayEnvironment
from tracer.node.node import HostReader
from tracer.node.node_questions import FlannelSubnets
from tracer.util.questions import Answer, Known, NotAsked

LEASES = ("node", "flannel")


def answered(path: Path, answer: Any) -> tuple[Answer[tuple[str, ...] | None], int]:
    """(answer of a capture in which flannel's leases were read, number of rows that could not be read)."""
    made = captures.capture(path).path
    row = (0, Record.ANSWER.value, "node flannel", pack([to_json(LEASES), 1, to_json(answer)]))
    with sqlite3.connect(made) as connection:
        connection.execute("UPDATE records SET seq = -seq")
        connection.execute("UPDATE records SET seq = 1 - seq")
        connection.execute("INSERT INTO records VALUES (1, ?, ?, ?, ?, ?)", (*row, crc(row)))
    with CaptureReader(str(made)) as capture:
        environment = ReplayEnvironment(capture)
        return FlannelSubnets().ask(HostReader(), environment.journal()), capture.missed


@pytest.mark.parametrize("answer", [None, (), ("10.244.0.0/24",)])
def test_each_answer_about_leases_is_read(tmp_path: Path, answer: tuple[str, ...] | None) -> None:
    assert answered(tmp_path / "a.k8st", answer) == (Known(answer), 0)


def test_an_answer_of_another_type_was_not_asked(tmp_path: Path) -> None:
    assert answered(tmp_path / "a.k8st", "10.244.0.0/24") == (NotAsked(LEASES), 1)
