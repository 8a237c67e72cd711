# SPDX-License-Identifier: Apache-2.0
"""The output of a finding: a block of text, a line of JSON, and both in the summary."""

from __future__ import annotations

import io
import json
import re
import shlex
from dataclasses import replace

import pytest

from tests.support.sample_findings import FOUND, SHOWN, VALIDATOR
from tests.support.terminal import Terminal
from tracer import render
from tracer.model.finding import FindingEvidence
from tracer.model.summary import RunSummary


def test_a_finding_as_text() -> None:
    out = io.StringIO()
    render.find("text")(out, io.StringIO()).finding(FOUND)
    assert out.getvalue().splitlines() == [
        "!! FINDING nodeport_host_process  3 packets",
        "   nginx listens in vain.",
        "   because    rule      INPUT 2 > KUBE-EXTERNAL-SERVICES 1: -p tcp -j REJECT  (observed)",
        "              process   ngi\\x1bnx (pid 812) listens on tcp 0.0.0.0:30584 of the node  (/proc/net)",
        "   check      ss -lntp",
        "   cure       Take another port.",
        "",
    ]


COMMAND = """iptables-nft -t nat -D POSTROUTING -m comment --comment "a rule" ! -s 10.60.0.0/16 -d 10.60.8.0/24 -j RETURN"""


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_a_command_can_be_copied_at_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is longer than the terminal, no word is divided, and the shell reads the lines as one command."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for cure in (f"Delete it: `{COMMAND}`.", f"`{COMMAND}`"):
        out = Terminal()
        render.find("text")(out, Terminal()).finding(replace(FOUND, cure=cure))
        text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
        assert max(map(len, text.splitlines())) <= columns
        (shown,) = re.findall("`([^`]*)`", text)
        assert shlex.split(shown.replace("\\\n", "")) == shlex.split(COMMAND)


def test_a_command_that_is_no_list_of_words_stays_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    command = "echo it's " + "x " * 40 + "end"
    out = Terminal()
    render.find("text")(out, Terminal()).finding(replace(FOUND, cure=f"`{command}`"))
    assert f"`{command}`" in out.getvalue()


def test_a_likely_finding_is_marked_as_likely() -> None:
    out = io.StringIO()
    render.find("text")(out, io.StringIO()).finding(replace(FOUND, certain=False, packets=1))
    assert out.getvalue().startswith(" ? PERHAPS nodeport_host_process  1 packet\n")


def test_the_summary_has_findings_before_its_figures() -> None:
    out = io.StringIO()
    render.find("text")(out, io.StringIO()).summary(RunSummary(packets=3, findings=[FOUND]))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("!! FINDING") and lines[7].startswith("3 packets in")


def test_the_summary_repeats_only_the_cause() -> None:
    out = io.StringIO()
    text = render.find("text")(out, io.StringIO())
    text.finding(FOUND)
    out.truncate(out.seek(0))
    text.summary(RunSummary(packets=3, findings=[replace(FOUND, packets=7, last=FOUND.last + 5_000_000_000)]))
    head, cause, empty = out.getvalue().splitlines()[:3]
    assert head.startswith("!! FINDING nodeport_host_process  7 packets, reported above at ") and head.endswith(":24.118")
    assert (cause, empty) == ("   nginx listens in vain.", "")


def test_the_summary_adds_newer_evidence() -> None:
    out = io.StringIO()
    text = render.find("text")(out, io.StringIO())
    text.finding(FOUND)
    out.truncate(out.seek(0))
    more = (
        *SHOWN,
        FindingEvidence("counter", "7 dropped", "observed"),
        FindingEvidence("packet", "sent 3, no answer was seen", "observed"),
    )
    text.summary(RunSummary(packets=3, findings=[replace(FOUND, proofs=more, cure="Do.")]))
    assert out.getvalue().splitlines()[1:6] == [
        "   nginx listens in vain.",
        "   since then counter   7 dropped  (observed)",
        "              packet    sent 3, no answer was seen  (observed)",
        "   cure       Do.",
        "",
    ]


def test_a_command_stays_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "dumb")
    out = Narrow()
    command = "iptables -t nat -D POSTROUTING 5"
    render.find("text")(out, io.StringIO()).finding(
        replace(FOUND, cure=f"Delete the stale rule of flannel: `{command}`. Then wait.")
    )
    lines = out.getvalue().strip("\n").splitlines()
    assert lines[-2:] == [
        "   cure       Delete the stale rule of flannel:",
        f"              `{command}`. Then wait.",
    ]


def test_a_finding_as_json() -> None:
    out = io.StringIO()
    form = render.find("json")(out, io.StringIO())
    form.finding(FOUND)
    form.summary(RunSummary(packets=3, findings=[FOUND, replace(FOUND, certain=False)]))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    for line in lines:
        VALIDATOR.validate(line)
    finding, summary = lines
    assert finding.pop("type") == "finding"
    assert finding == summary["findings"][0]
    assert (finding["count"], finding["packets"], finding["certain"]) == (3, [3, 4, 9], True)
    assert finding["first"] == "2026-01-31T14:03:22.118204511Z" and finding["last"] == "2026-01-31T14:03:24.118204511Z"
    assert finding["proofs"][0] == {"what": "rule", "text": SHOWN[0].text, "evidence": "observed"}
    assert summary["findings"][1]["certain"] is False
