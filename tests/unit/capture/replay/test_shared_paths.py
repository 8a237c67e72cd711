# SPDX-License-Identifier: Apache-2.0
"""Recorded runs, replayed with packets on shared paths and with each packet explained on its own: each output is the same."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.alone import PROGRAM
from tracer.packets.assembler import DIFFERENT, PacketAssembler
from tracer.pipeline.assembly import COMPARED_VARIABLE

REAL = PROGRAM / "tests/data/real"
NAMES = sorted(path.name.partition(".")[0] for path in REAL.glob("*.k8st.xz"))
FORMS: dict[str, tuple[str, ...]] = {
    "text": ("-r",), "all hops": ("-v", "-r"), "JSON": ("-o", "json", "-r"), "timelines": ("--follow", "-r"),
    "timelines in JSON": ("--follow", "-o", "json", "-r"), "drops": ("--drops-only", "-r"), "no rules": ("--no-rules", "-r"),
    "statistics": ("stats",), "findings": ("findings",),
}  # fmt: skip
FOUND = 10
"""Exit status of `findings` when there is one."""
Replay = Callable[..., tuple[tuple[int, str, str], int]]


@pytest.fixture
def replay(run: Any, monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Runs a command with or without sharing: (status, output, messages), and the number of packets on shared paths."""
    made: list[PacketAssembler] = []
    is_on = True
    begin = PacketAssembler.__init__

    def init(self: PacketAssembler, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        self.is_sharing = is_on
        made.append(self)

    monkeypatch.setattr(PacketAssembler, "__init__", init)

    def replayed(*args: str | Path, is_sharing: bool, compared_every: int = 0) -> tuple[tuple[int, str, str], int]:
        nonlocal is_on
        is_on = is_sharing
        made.clear()
        monkeypatch.setenv(COMPARED_VARIABLE, str(compared_every))
        printed = run(*args)
        return printed, sum(assembler.shared for assembler in made)

    return replayed


@pytest.fixture(params=NAMES)
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.k8st"
    path.write_bytes(lzma.decompress((REAL / f"{request.param}.k8st.xz").read_bytes()))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_outputs_are_the_same_in_both_ways(capture: Path, form: str, replay: Replay) -> None:
    own, none = replay(*FORMS[form], capture, is_sharing=False)
    shared, count = replay(*FORMS[form], capture, is_sharing=True)
    assert own[0] in (0, FOUND) and own[1] and shared == own
    assert none == 0 and count > 0


def test_every_packet_of_a_shared_path_is_the_one_of_its_events(capture: Path, replay: Replay) -> None:
    (_, text, messages), count = replay("-r", capture, is_sharing=True, compared_every=1)
    assert count > 0 and DIFFERENT not in text + messages


@pytest.mark.parametrize("form", ["jsonl", "pcapng", "html"])
def test_exports_are_the_same_in_both_ways(capture: Path, form: str, replay: Replay, tmp_path: Path) -> None:
    written, counts = [], []
    for is_sharing in (False, True):
        target = tmp_path / f"export.{form}"
        printed, count = replay("export", "--to", form, capture, target, is_sharing=is_sharing)
        assert printed[0] == 0, printed[2]
        written.append((printed, target.read_bytes()))
        counts.append(count)
        target.unlink()
    assert written[0] == written[1] and len(written[0][1]) > 1000
    assert counts[0] == 0 and (counts[1] > 0 or form == "pcapng")
