# SPDX-License-Identifier: Apache-2.0
"""No text from outside controls a terminal: each text of each printed data class is made hostile, one after another."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.support import captures
from tests.support import sample_packets as samples
from tests.support import syns as at_a_listener
from tests.support.sample_findings import FOUND
from tests.support.terminal import Terminal
from tests.unit.render.test_timeline import a_timeline
from tracer import render
from tracer.analysis.result_table import ResultTable, show
from tracer.capture.record.capture_files import CaptureFiles
from tracer.cli import main
from tracer.commands import read as reading
from tracer.errors import BadOption
from tracer.events.record import NOTHING
from tracer.export.pcapng import as_shown
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramAction
from tracer.model.check import CheckResult
from tracer.model.connection import ConnectionKey
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, HandshakeVerdict
from tracer.model.hop import (
    QUEUE_ANSWER,
    QUEUE_REFUSED,
    ChainHop,
    DecisionDetail,
    DetailHop,
    Drop,
    DropHop,
    Handshake,
    HandshakeHop,
    HookHop,
    Hop,
    IpvsDecision,
    IpvsNatHop,
    IpvsRefusalHop,
    Nat,
    NatHookHop,
    NatHop,
    Redirect,
    RedirectHelper,
    RedirectHop,
    RouteHop,
    Socket,
    SocketHop,
    TableHop,
)
from tracer.model.kube import Owner
from tracer.model.loss import Loss
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.model.summary import RunSummary
from tracer.model.timeline import PathStep, TimelineEntry
from tracer.node.namespaces import Namespaces
from tracer.pipeline.sinks import OutputSpec
from tracer.render._style import STYLES, Styler
from tracer.render.base import Output
from tracer.util.escape import escaped, escaped_line, json_line

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\x7f\u202eabc\u2066\u2028x\x85y\r\nFORGED LINE\x00\udcff\ud83d"
"""The clipboard, a cleared screen, C1, DEL, bidi, line separators, a forged line, a byte that is no UTF-8, a lone surrogate."""
ALLOWED = re.compile(r"\x1b\[(0|1;31|1|2|32|33|36|94)m")
"""The codes of STYLES, and the reset code."""
SKIPPED = {"ruleset"}
"""Fields that no format shows: all rules of a table; the rules of a packet are in its rule trace."""

PROGRAM = AttachedProgram("tc", 42, "cil_x", "ab", "Cilium", "pin", "/sys/fs/bpf/x", "agent (pid 1)", "/kubepods")
NAMED = ProgramAction(AttachPoint.TC_INGRESS, "eth0", (PROGRAM,))
AT_CGROUP = ProgramAction(AttachPoint.CGROUP_EGRESS, "", (PROGRAM,))
VERDICT = at_a_listener.verdicts(at_a_listener.syn(*at_a_listener.at_listener(True)), at_a_listener.synack())[0]
TOTALS = RunSummary(
    2, 1, 9, 3, {"dropped": 2}, 1.0, [FOUND], {"accepted": 1}, [CounterMismatch(Netns("pod-a"), "ListenDrops", 2, 1)],
    {"timelines": 1}, 4
)  # fmt: skip
OWNED = replace(samples.node_port(), src_owner=Owner("Pod", "a", "b"), dst_owner=Owner("Service", "a", "b", "c", "d", "e", "f"))
DETAILED = replace(samples.ping(), hops=(DetailHop(0, HOST, detail=DecisionDetail("route", {"error": 113, "text": "x"})),))
ANSWER: dict[str, int | str] = {"queue": 1, "verdict": "DROP", "by": "process", "pid": 7, "process": "nginx", "waited_ns": 9}
REFUSED: dict[str, int | str] = {"queue": 1, "errno": 105, "by": "queue full", "waiting": 1, "maximum": 1}
NAT = Nat("DNAT", Endpoints("a", 1, "b", 2), Endpoints("a", 1, "c", 2))
RULE = Rule("ip", "nat", "A", 1, "-j DNAT", "comment", "DNAT", 7)
TRACE = RuleTrace(
    (RuleHit((RuleLocation("A", 1), RuleLocation("B", 2)), RULE, "DNAT", Evidence.OBSERVED, "tcp : goto x"),), possible=(RULE,)
)
MORE: list[Hop] = [
    NatHop(
        0,
        HOST,
        Hook.PREROUTING,
        nat=NAT,
        rule_trace=TRACE,
        owner=Owner("Service", "a", "b"),
        in_iface="eth0",
    ),
    TableHop(
        1,
        HOST,
        Hook.INPUT,
        table="filter",
        verdict=Verdict.REJECT,
        reject="x",
        rule_trace=replace(TRACE, undecided="why"),
    ),
    ChainHop(1, HOST, Hook.INPUT, table="ip filter", chain="INPUT", verdict=Verdict.DROP, rule_trace=TRACE),
    HookHop(2, HOST, Hook.INPUT, verdict=Verdict.DROP),
    NatHookHop(2, HOST, Hook.INPUT, verdict=Verdict.DROP),
    IpvsRefusalHop(2, HOST, Hook.INPUT, verdict=Verdict.REJECT, reject="x", decision=IpvsDecision("10.0.0.1", 1, "tcp", "rr")),
    DropHop(2, HOST, verdict=Verdict.DROP, drop=Drop("REASON", "function")),
    DropHop(2, HOST, verdict=Verdict.DROP, drop=Drop("REASON", "function", program=NAMED)),
    DropHop(2, HOST, verdict=Verdict.DROP, drop=Drop("REASON", "function", program=replace(NAMED, doubt="not known"))),
    DropHop(2, HOST, verdict=Verdict.DROP, drop=Drop("REASON", "function", program=AT_CGROUP)),
    SocketHop(3, Netns("pod"), socket=Socket(1, "LISTEN", 7, "nginx")),
    HandshakeHop(4, Netns("pod"), handshake=Handshake("SYN", False, 3, 2, 1)),
    IpvsNatHop(5, HOST, Hook.INPUT, nat=NAT, decision=IpvsDecision("10.0.0.1", 1, "tcp", "rr", False, "10.0.0.2", 2, "now")),
    DetailHop(6, HOST, detail=DecisionDetail(QUEUE_ANSWER, ANSWER)),
    DetailHop(6, HOST, detail=DecisionDetail(QUEUE_REFUSED, REFUSED)),
    RouteHop(6, HOST, out_iface="eth1", route="unicast"),
    NatHop(7, HOST, nat=NAT, program=NAMED),
    RedirectHop(8, HOST, redirect=Redirect("eth1", RedirectHelper.PLAIN, True, NAMED)),
    RedirectHop(8, HOST, redirect=Redirect("eth1", RedirectHelper.COPY, False, replace(NAMED, doubt="not known"))),
]
PRINTED: list[tuple[Any, Callable[[Output, Any], None]]] = [
    *((packet, Output.packet) for packet in (*samples.every(), OWNED, DETAILED, replace(samples.ping(), hops=tuple(MORE)))),
    (FOUND, Output.finding),
    (VERDICT, Output.syn),
    (a_timeline(why="why", cause="accepted", lost=1), Output.timeline),
    (TOTALS, Output.summary),
    (CheckResult("bcc", "missing", "install it"), lambda output, fact: output.begin([fact], fact.text, fact.subject)),
    (CheckResult("bcc", "missing", "install it"), lambda output, fact: output.doctor([fact], 1)),
    (Loss("hook", 1, 3, "the ring buffer was full"), Output.lost),
    ("a note", Output.note),
    (FOUND, lambda output, finding: output.audit([finding], ["x"], [finding.cause], 0)),
]


def poisoned(value: Any) -> Iterator[Any]:
    """The value with one of its texts made hostile, for each text in it."""
    if isinstance(value, Enum) or value is None:
        return
    if isinstance(value, str):
        yield value + EVIL
        yield EVIL
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            if each.init and each.name not in SKIPPED:
                for changed in poisoned(getattr(value, each.name)):
                    yield replace(value, **{each.name: changed})
    elif isinstance(value, list | tuple):
        for at, one in enumerate(value):
            for changed in poisoned(one):
                yield type(value)([*value[:at], changed, *value[at + 1 :]])
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield {**value, key + EVIL: one}
            for changed in poisoned(one):
                yield {**value, key: changed}


def data_classes(value: Any) -> set[type]:
    """The data classes in a value."""
    if is_dataclass(value) and not isinstance(value, type):
        inside = (data_classes(getattr(value, f.name)) for f in fields(value) if f.name not in SKIPPED)
        return {type(value)}.union(*inside)
    if isinstance(value, Mapping):
        return set().union(*map(data_classes, value.values()))
    return set().union(*map(data_classes, value)) if isinstance(value, list | tuple) else set()


def harmless(text: str, colours: bool = False) -> None:
    """Raises AssertionError for a text with a terminal control code or with a forged line."""
    rest = ALLOWED.sub("", text) if colours else text
    bad = sorted({c for c in rest if not c.isprintable()} - {"\n"})
    assert not bad, (bad, rest)
    assert not any(line.lstrip().startswith("FORGED") for line in rest.split("\n")), rest


def test_all_printed_data_classes_are_tried() -> None:
    every = set().union(*(data_classes(value) for value, _ in PRINTED))
    assert every >= {
        Packet, *get_args(Hop),
        Endpoints, Nat, Socket, Drop, Handshake, IpvsDecision, DecisionDetail, RuleTrace, RuleHit, RuleLocation,
        Rule, Owner, CheckResult, Loss, HandshakeVerdict,
        Cause, CounterMismatch, RunSummary, ConnectionKey, TimelineEntry, PathStep, type(FOUND), type(FOUND.proofs[0]),
    }  # fmt: skip
    shown = {f.name for kind in get_args(Hop) for f in fields(kind) if "|" in str(f.type)}
    tried = {f.name for v, _ in PRINTED if isinstance(v, Packet) for h in v.hops for f in fields(h) if getattr(h, f.name)}
    assert shown <= tried, "a field of a hop that no sample has"


@pytest.mark.parametrize("number", range(len(PRINTED)))
@pytest.mark.parametrize(("form", "kind"), [("text", Terminal), ("text", io.StringIO), ("json", io.StringIO)])
def test_no_text_of_a_data_class_controls_a_terminal(number: int, form: str, kind: type[io.StringIO]) -> None:
    value, write = PRINTED[number]
    tried = 0
    for changed in poisoned(value):
        out, err = kind(), kind()
        output = render.find(form)(out, err, verbose=bool(tried % 2))
        try:
            _write(output, write, changed)
        except (ValueError, KeyError, TypeError) as e:
            # An address or a state that does not exist; the kernel never sends it, and nothing was printed.
            harmless(escaped(str(e)))
            continue
        for stream in (out, err):
            harmless(stream.getvalue(), kind is Terminal)
        if form == "json":
            for line in out.getvalue().splitlines():
                assert line.isascii() and line.isprintable()
                json.loads(line).keys()
                json.loads(line.encode())
                assert not re.search(r"(?<!\\)\\ud8", line), "a lone surrogate, which some parsers refuse"
        tried += 1
    assert tried


def _write(output: Output, write: Callable[[Output, Any], None], value: Any) -> None:
    """Writes the value with the format's own method, if it has one."""
    name = getattr(write, "__name__", "")
    getattr(output, name)(value) if name != "<lambda>" else write(output, value)


def test_only_the_styler_makes_colours() -> None:
    """A text that contains the codes of a colour does not get the colour."""
    style = Styler(Terminal())
    for name in STYLES:
        written = escaped_line(style(name, "a\x1b[1;31mb"))
        assert "a\\x1b[1;31mb" in written and written.startswith("\x1b[") and written.endswith("\x1b[0m")
    assert escaped_line("plain, with an umlaut: \u00e4, and \u4e2d") == "plain, with an umlaut: \u00e4, and \u4e2d"


def test_json_of_strings_that_are_no_utf_8() -> None:
    line = json_line({"a\udcff": ["\ud83d", "\U0001f600", "\x7f", "\\ud800"]})
    assert (
        json.loads(line) == {"a\\xff": ["\\ud83d", "\U0001f600", "\x7f", "\\ud800"]} and line.isascii() and "\x7f" not in line
    )


def test_an_error_of_an_option(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`--netns nosuch` lists the namespaces, and containers choose the names of their processes."""
    monkeypatch.setattr("tracer.node.namespaces._command", lambda pid: EVIL)
    with pytest.raises(BadOption) as e:
        Namespaces().find("nosuch")
    assert main._print_error(str(e.value) + EVIL, 2) == 2
    err = capsys.readouterr().err
    harmless(err)
    assert err.count("\n") == 1 and "nosuch" in err


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_table(form: str) -> None:
    out = io.StringIO()
    show([ResultTable(f"[red]{EVIL}", (f"[bold]{EVIL}", "number"), [(f"[/]{EVIL}", 1)])], out, form)
    harmless(out.getvalue())
    assert "[red]" in out.getvalue() and "[bold]" in out.getvalue()


def test_comments_of_packets() -> None:
    for packet in (*samples.every(), OWNED):
        for changed in poisoned(packet):
            for shown in as_shown(changed):
                harmless(shown.comment)
                shown.comment.encode()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_capture(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Options, host names, check results, notes, reasons of losses and drops, functions of a capture are all hostile."""
    describe = CaptureFiles.describe

    def hostile(self: CaptureFiles, meta: dict[str, Any]) -> None:
        meta["host"] = {name: EVIL for name in meta["host"]}
        meta["drop_reasons"] = {"dict": [[n, EVIL] for n in range(10)]}
        meta["options"]["dict"] = [[k, EVIL if k == "said" else v] for k, v in meta["options"]["dict"]]
        describe(self, meta)

    monkeypatch.setattr(CaptureFiles, "describe", hostile)
    monkeypatch.setattr(captures, "FUNCTIONS", {0x10: EVIL})
    evil = [CheckResult(EVIL, "degraded", EVIL)]
    monkeypatch.setattr(captures, "FACTS", {"full": evil, "missed": evil})
    batches = captures.some_batches()
    batches.insert(1, (NOTHING, [Loss("hook" + EVIL, 1, 2, EVIL)]))
    made = captures.capture(tmp_path / "a.k8st", batches)
    monkeypatch.setattr("tracer.capture.replay.source.ReplaySource.notes", lambda self: [EVIL])
    options = {"outputs": [OutputSpec(form)], "verbose": True, "read": (str(made.path),)}
    reading.read([str(made.path)], options)
    printed = capsys.readouterr()
    harmless(printed.out)
    harmless(printed.err)
    assert "ZXZpbA" in printed.out and "ZXZpbA" in printed.err
