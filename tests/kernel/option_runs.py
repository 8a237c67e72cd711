# SPDX-License-Identifier: Apache-2.0
"""Runs incidents and the demonstration under each option that changes the output, and checks the findings and the output.

In the kernel only a run's filter differs by option: by --port or by --service, with or without --drops-only. Each of these four
is a side. A case is recorded once on each side; all other options are applied when it is read (tests/support/options_check.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import incidents
from incidents.objects import Object
from scenes import scene, topology, traffic
from scenes.rules import Backend
from tests.kernel.recorder import Both, Patient, Recorded, Recorder
from tracer.capture.replay import runner
from tracer.capture.replay.file_series import opened
from tracer.commands.trace import TraceRequest
from tracer.kube.selectors import Selectors
from tracer.model.filter import Filter
from tracer.model.finding import Finding
from tracer.model.summary import RunSummary
from tracer.render.json import JsonOutput
from tracer.render.text import TextOutput

BY_RULES = frozenset({"nodeport_host_process", "missing_masquerade", "no_local_endpoints", "hostport_takes_service"})
"""Findings that depend on a rule: --no-rules finds none of them."""
NOWHERE = frozenset({"", "::", "0.0.0.0"})


@dataclass(frozen=True)
class Options:
    """Options of a run. Text and JSON are always written, and the capture is always read again.

    Attributes:
        name: Name of this set of options.
        drops: --drops-only.
        no_rules: --no-rules.
        follow: --follow.
        by_service: --service for every Service, in place of --port.
        record: The command `record`, then -r.
    """

    name: str
    drops: bool = False
    no_rules: bool = False
    follow: bool = False
    by_service: bool = False
    record: bool = False


OPTIONS = (
    Options("plain"), Options("drops-only", drops=True), Options("no-rules", no_rules=True), Options("follow", follow=True),
    Options("service", by_service=True), Options("record", record=True), Options("drops-only follow", drops=True, follow=True),
    Options("drops-only service", drops=True, by_service=True), Options("drops-only record", drops=True, record=True),
    Options("drops-only no-rules", drops=True, no_rules=True),
)  # fmt: skip
SIDES = (
    Options("all", record=True), Options("drops", drops=True), Options("service", by_service=True, record=True),
    Options("drops-service", drops=True, by_service=True, record=True),
)  # fmt: skip
"""The recordings of a case: one is explained live, the others are not."""


@dataclass(frozen=True)
class Case:
    """What is run under each option. finding: name of the expected finding, "" = no finding, but packets with this outcome."""

    name: str
    ports: tuple[int, ...]
    up: Callable[[], list[Object]]
    work: Callable[[], object]
    finding: str = ""
    expected: int = 0
    outcome: str = ""


def cases(backend: Backend) -> Iterator[Case]:
    """The demonstration, and every state of every incident."""
    ports = traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY
    yield Case(f"demo {backend}", ports, lambda: _scene(backend), _requests, outcome="rejected")
    for incident in incidents.every():
        for state in incident.states_in(backend):
            yield incident_case(incident, state, backend)


def incident_case(incident: incidents.Incident, state: str, backend: Backend) -> Case:
    return Case(
        f"{incident.number} {state} {backend}", incident.ports, lambda: incident.up(state, backend),
        lambda: incident.traffic(state), incident.finding, incident.states[state],
    )  # fmt: skip


def _scene(backend: Backend) -> list[Object]:
    incidents.down()
    scene.up(backend=backend)
    return []


def _requests() -> None:
    for _ in range(2):
        traffic.http_get(topology.NODE4, traffic.NODEPORT_HTTP)
    traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY)


@dataclass
class Result:
    """The result of one run. wrong: one sentence for each error."""

    case: str
    options: str
    findings: list[Finding] = field(default_factory=list)
    summary: RunSummary = field(default_factory=RunSummary)
    wrong: list[str] = field(default_factory=list)
    text: str = ""

    @property
    def line(self) -> str:
        found = ", ".join(f"{f.name}{'' if f.certain else ' (perhaps)'}" for f in self.findings) or "nothing found"
        line = f"{self.case} | {self.options}: {self.summary.packets} packets, {found}"
        return line + "".join(f"\n    WRONG: {w}" for w in self.wrong)


def run(recorder: Recorder, case: Case, options: Options) -> Result:
    """Builds the case, makes its traffic under these options, and leaves the case up."""
    recorded = record(recorder, case, options, case.up())
    if options.record:
        return read(recorded.files, case, options)
    text, lines = recorded.text.read_text(), recorded.json.read_text()
    result = checked(case, options, text, lines, recorded.summary)
    result.wrong += differing(text, read(recorded.files, case, options).text)
    return result


def record(recorder: Recorder, case: Case, options: Options, objects: list[Object], name: str = "") -> Recorded:
    """Makes the traffic of a case that is up, under these options."""
    services = tuple(f"{m['namespace']}/{m['name']}" for o in objects if o["kind"] == "Service" for m in [o["metadata"]])
    selectors = Selectors(services=services) if options.by_service and services else Selectors()
    packet_filter = Filter(ports=() if selectors else case.ports, drops_only=options.drops)
    name = name or f"{case.name} {options.name}".replace(" ", "-")
    job = TraceRequest(said=name, no_rules=options.no_rules, follow=options.follow, record_only=options.record)
    return recorder(name, case.work, packet_filter, str(incidents.OBJECTS) if objects else "", job=job, selectors=selectors)


def read(files: Sequence[Path], case: Case, options: Options, drops: bool = False) -> Result:
    """Reads a recording under these options. drops: the recording has all packets, and is read with --drops-only."""
    text, lines = StringIO(), StringIO()
    output = Both(TextOutput(text, StringIO()), JsonOutput(lines, StringIO()))
    request = runner.ReplayRequest(no_rules=options.no_rules, follow=options.follow, drops_only=drops)
    with opened([str(path) for path in files]) as capture:
        totals = runner.replay(capture, output, request, Patient())
    output.summary(totals)
    return checked(case, options, text.getvalue(), lines.getvalue(), totals)


def checked(case: Case, options: Options, text: str, lines: str, summary: RunSummary) -> Result:
    """Checks the output of a run."""
    result = Result(case.name, options.name, summary.findings, summary, text=text)
    result.wrong = list(_wrong(case, options, result, text, [json.loads(line) for line in lines.splitlines()]))
    return result


def differing(live: str, replayed: str) -> list[str]:
    """A sentence if a block of the live output is absent from the replayed output."""
    blocks = set(replayed.split("\n\n"))
    missing = [b for b in live.split("\n\n")[:-1] if b not in blocks]
    return [f"read again, this is not printed: {missing[0]}"] if missing else []


def _wrong(case: Case, options: Options, result: Result, text: str, lines: list[dict[str, object]]) -> Iterator[str]:
    expected = 0 if options.no_rules and case.finding in BY_RULES else case.expected
    right = [f for f in result.findings if f.name == case.finding and f.certain]
    others = [f for f in result.findings if f not in right]
    if len(right) != expected or others:
        yield f"{len(right)} of {expected} found: {[f.cause for f in result.findings]}"
    packets = [line for line in lines if line["type"] == "packet"]
    for packet in packets:
        if packet["src"] in NOWHERE or packet["dst"] in NOWHERE or packet["proto"] == "0":
            yield f"a packet without addresses: {packet}"
    if ":: ->" in text or "-> ::" in text:
        yield "a packet without addresses in the text"
    if not result.summary.events:
        yield "nothing was seen"
    if case.outcome and not result.summary.outcomes.get(case.outcome):
        yield f"no packet {case.outcome}: {result.summary.outcomes}"
    if result.summary.unaddressed and not result.summary.lost:
        yield f"{result.summary.unaddressed} packets have no addresses, and nothing was lost"
    for difference in result.summary.differences:
        if difference.counter.startswith("Listen") and difference.open and not result.summary.lost:
            yield difference.text
