# SPDX-License-Identifier: Apache-2.0
"""A run may end before it has explained all packets. Its replay prints the run's output, and the other packets with a mark."""

from __future__ import annotations

import difflib
import json
import lzma
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import captures
from tests.support.alone import PROGRAM
from tests.support.builders import Trail
from tracer.events import record
from tracer.packets.assembler import CHUNK_PACKETS

REAL = PROGRAM / "tests/data/real"
MARK = "not explained by the run"
SUMMARY = "the run ended before it could explain {} more packets"
NEW_SENTENCES = (
    ("told above at", "reported above at"),
    (
        r"ended before (\d+) more packets that had been seen could be explained",
        "the run ended before it could explain \\1 more packets",
    ),
    ("no process has it yet", "no process holds it"),
    ("a known connection: chosen for an earlier packet", "existing connection: chosen for an earlier packet"),
    (
        "a known connection: chosen earlier, which was not seen",
        "existing connection: chosen earlier, the choice was not observed",
    ),
    (
        "is refused for having no endpoints, although 1 pod stands behind it",
        "is refused because it has no endpoints, although 1 pod belongs to it",
    ),
    ("on this node for having no local", "on this node because it has no local"),
    (
        "Mend what the readiness probe asks for, or the probe; publishNotReadyAddresses: true gives requests",
        "Fix the application so that its readiness probe succeeds, or fix the probe;"
        " publishNotReadyAddresses: true sends requests",
    ),
    ("does not come back the way of the request", "does not come back on the path of the request"),
    (
        "Restarting flannel alone does not: it only removes what it would write now",
        "Restarting flannel does not delete it: flannel removes only the rules that it would write now",
    ),
    (
        r"goes by the name (\S+) \((.*?)\) and the endpoints carry (\S+), so it takes none of them for local",
        r"uses the node name \1 (\2) but the endpoints have \3, so none of them is local for it",
    ),
    (
        "the name that the endpoints carry; compare it with the name that kube-proxy goes by",
        "the node name of the endpoints; compare it with the one that kube-proxy uses",
    ),
    ("goes by the name", "uses the node name"),
    ("so the flag is what counts", "so the flag has effect"),
    ("See why the process does not call", "Find out why the process does not call"),
    (r"(?m)^(\d\S+)  SYN (\S+ -> \S+)  ", r"       cause  SYN \2 of \1  "),
)
"""Sentences of the stored outputs (a pattern), and the sentences that are printed now."""
NEW_LINE = r" *\d+ dropped packets? without a finding: .*\n"
"""A line of the summary that the stored outputs do not have."""
CAUSE = re.compile(r"^ +cause  (?!SYN \S+ -> )(.*)\n?", re.M)
"""The cause of a refused SYN, on the SYN's block."""


def real(name: str, place: Path) -> tuple[Path, str]:
    """A capture of a real cluster, and the output of its run: the same blocks, with the sentences that are printed now."""
    path = place / f"{name}.k8st"
    path.write_bytes(lzma.decompress((REAL / f"{name}.k8st.xz").read_bytes()))
    text = lzma.decompress((REAL / f"{name}.txt.xz").read_bytes()).decode()
    for old, new in NEW_SENTENCES:
        text = re.sub(old, new, text)
    return path, text


def blocks(text: str) -> list[str]:
    """The blocks of a text: each is a packet, a SYN's line, a finding or the summary."""
    return text.strip("\n").split("\n\n")


def without_causes(shown: list[str]) -> tuple[list[str], list[str]]:
    """The blocks without the causes of refused SYNs, and the line that each of these causes was in the stored outputs."""
    found, syns = [], []
    for block in shown:
        cause = CAUSE.search(block)
        if cause:
            time, _, ends = block.partition("  SYN  ")[0].partition("  TCP ")
            syns.append(f"{'cause':>12}  SYN {ends} of {time}  {cause[1]}")
        found.append(CAUSE.sub("", block).rstrip("\n"))
    return found, syns


def added_blocks(before: str, now: str) -> list[str]:
    """The blocks that the replay has and its run does not have. There is no other difference."""
    other, syns = without_causes(blocks(re.sub(NEW_LINE, "", now)))
    one = [block for block in blocks(before) if block not in syns]
    assert len(one) == len(blocks(before)) - len(syns), "each cause on a block was a line of its own"
    found = []
    for what, a, b, c, d in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        assert what in ("equal", "insert"), "\n\n".join([*one[a:b], "--- now:", *other[c:d]])
        found += other[c:d] if what == "insert" else []
    return found


@pytest.mark.parametrize(("name", "left"), [("B", 28), ("H", 20), ("I", 0)])
def test_captures_of_a_real_cluster(tmp_path: Path, run: Any, name: str, left: int) -> None:
    """The runs of B and H explained no packet of their last batch. These captures do not record that."""
    path, before = real(name, tmp_path)
    status, now, err = run("-r", path)
    found = added_blocks(before, now)
    assert status == 0 and len(found) == left, "\n\n".join(found)
    assert all(f"{MARK} (derived)" in block for block in found), "\n\n".join(found)
    assert (SUMMARY.format(left) in now) is bool(left)
    assert ("does not say how many of its packets the run had explained" in err) is bool(left)


def test_no_finding_rests_on_an_unasked_question(tmp_path: Path, run: Any) -> None:
    """The listener on both NodePorts was kube-proxy, which holds them; the run ended before it looked this up."""
    path, before = real("B", tmp_path)
    _, now, _ = run("findings", path)
    assert "PERHAPS nodeport_host_process" not in before + now
    assert f"{before.count('!! FINDING') // 2} findings in 157 packets.\n" in now


def requests(first: int, count: int) -> Any:
    return np.concatenate([captures.request(n, n * 1_000_000, 48_000 + n) for n in range(first, first + count)])


FIRST, SECOND, THIRD = 3, 2 * CHUNK_PACKETS + 9, 5
"""Packets of three batches."""


def made(place: Path, late: int) -> captures.Printed:
    """A run of three batches. late: number of packets after which the run ends at once, 0 = never."""
    batches = [requests(1, FIRST), requests(100, SECOND), requests(1000, THIRD), record.NOTHING]
    return captures.capture(place / "a.k8st", [(batch, []) for batch in batches], end_after=late)


@pytest.mark.parametrize(
    ("late", "left"),
    [(FIRST + 1, SECOND - CHUNK_PACKETS + THIRD), (FIRST + CHUNK_PACKETS + 1, 9 + THIRD), (FIRST + SECOND, THIRD), (0, 0)],
    ids=["in a batch", "later in a batch", "before the last batch", "explained all"],
)
@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "derived"])
def test_the_replay_finds_where_the_explaining_ended(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch, late: int, left: int, is_recorded: bool
) -> None:
    """In a capture without a record of it, the processes of sockets prove it: explaining a packet always asks for them."""
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    if not is_recorded:
        monkeypatch.setattr("tracer.capture.record.environment.RecordingSource.mark_unexplained", lambda *_: None)
    capture = made(tmp_path, late)
    _, now, err = run("-r", capture.path)
    found = added_blocks(capture.text["text"], now)
    assert capture.summary.unexplained == len(found) == left
    assert all(MARK in block.splitlines()[-1] for block in found)
    assert all((f"{MARK} (derived)" in block) is not is_recorded for block in found)
    assert ("does not say how many of its packets" in err) is (bool(left) and not is_recorded)
    assert not any(" SYN 1" in block for block in found), "unexplained packets give no verdict of a SYN"


def test_unexplained_packets_in_json(tmp_path: Path, run: Any) -> None:
    path, _ = real("B", tmp_path)
    _, now, _ = run("-r", path, "-o", "json")
    lines = [json.loads(line) for line in now.splitlines()]
    marked = [line for line in lines if line.get("unexplained") and line["type"] == "packet"]
    assert len(marked) == 28 and {line["unexplained"] for line in marked} == {"derived"}
    assert (lines[-1]["packets"], lines[-1]["unexplained"]) == (157, 28)


@pytest.mark.parametrize("late", [0, CHUNK_PACKETS // 2])
def test_no_answer_is_not_reported_when_the_answer_may_be_unexplained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """The SYN was forwarded and explained; the run ended before it explained the packets after it."""
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    trail = Trail(("192.168.56.9", 7, "192.168.56.10", 30285), 1 << 8, 1000, in_name="eth0").hook("PREROUTING")
    syn = trail.hook("POSTROUTING", in_name="", out_name="cni0").batch
    cut = captures.capture(tmp_path / "a.k8st", [(np.concatenate([syn, requests(5, CHUNK_PACKETS)]), [])], end_after=late)
    (line,) = (block for block in blocks(cut.text["text"]) if "  SYN 192.168.56.9" in block and "=>" not in block)
    assert ("no SYN-ACK in 1 s" in line) is (not late)
    assert ("packets were left unexplained while its answer was awaited" in line) is bool(late)
