# SPDX-License-Identifier: Apache-2.0
"""What real requests got on one node, beside what `explain` calls their outcome and what `audit` calls certain."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from scenes.netns import entered
from tests.kernel.audit_nodes import ADDRESSES, CLIENT, FAR, HOSTED, MINE, NODE, PODS, PORT, Plan
from tracer.audit import audit
from tracer.audit.state import NodeState
from tracer.findings.context import FindingContext
from tracer.kube.catalog import ClusterView
from tracer.kube.store import ObjectStore
from tracer.model.finding import Finding
from tracer.model.prediction import PredictedPath
from tracer.node.node import HostReader
from tracer.predict.query import PathQuery
from tracer.rules import inventory

SENDERS = {"outside": (CLIENT, "client"), "the node": (NODE, None), "a pod": (PODS["pod-c"], "pod-c")}
REFUSED, LOST, HERE = "refused", "no answer", "the node's process"
ANY = "any source"
TRIES = 2
"""Each request is made so often: chance may choose another endpoint."""


@dataclass(frozen=True)
class Ask:
    """A request. sender: a key of SENDERS."""

    sender: str
    address: str
    port: int

    @property
    def text(self) -> str:
        return f"{self.sender} -> {self.address}:{self.port}"


@dataclass
class Result:
    """What one node came to. certain: the names of the audit's certain findings. wrong: a sentence each."""

    text: str
    requests: int = 0
    undecided: int = 0
    certain: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def asks(made: Plan) -> Iterator[Ask]:
    """The requests that are made on a node."""
    for sender in SENDERS:
        for s in made.services:
            yield Ask(sender, s.address, s.port)
        node_ports = {s.node_port for s in made.services if s.node_port}
        for port in sorted(node_ports | {h.port for h in made.host_ports} | set(made.listens)):
            yield Ask(sender, NODE, port)
        if sender != "outside":
            for h in made.host_ports:
                yield Ask(sender, CLIENT, h.port)


def send(ask: Ask, timeout: float) -> tuple[str, str]:
    """(who answered, or how it failed; the source address that arrived there, "" when none)."""
    with entered(SENDERS[ask.sender][1]):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with sock:
        sock.settimeout(timeout)
        try:
            sock.connect((ask.address, ask.port))
            name, _, seen = sock.recv(200).decode().partition("\t")
        except TimeoutError:
            return LOST, ""
        except (ConnectionRefusedError, ConnectionResetError):
            return REFUSED, ""
        except OSError as e:
            return (LOST if e.errno in (1, 101, 113) else f"errno {e.errno}"), ""
    return name, seen.strip()


def got(made: Plan, timeout: float, beside: int) -> dict[Ask, list[tuple[str, str]]]:
    """What all requests got."""
    every = list(asks(made))
    with ThreadPoolExecutor(beside) as pool:
        answers = [list(pool.map(lambda a: send(a, timeout), every)) for _ in range(TRIES)]
    return {ask: [each[at] for each in answers] for at, ask in enumerate(every)}


def state(made: Plan, proc: Path) -> NodeState:
    """What the audit reads here. proc: like /proc, of this namespace."""
    store = ObjectStore("node-1")
    store.load(made.objects())
    local = frozenset({NODE, "10.244.0.1", "10.244.0.254", "127.0.0.1"})
    found = inventory.read(True)
    assert not found.unread, found.unread
    return NodeState(FindingContext(ClusterView(store, local=local), HostReader(proc)), found)


def expected(predicted: PredictedPath, made: Plan) -> set[tuple[str, str]] | None:
    """What a request gets that goes this way; None when the story does not say. The source is "" where it does not."""
    packet = predicted.packet
    by_ipvs = re.search(r"by IPVS, .* one of (.*)", packet.verdict)
    if by_ipvs:
        # Who may get it is said, not whether it is masqueraded, nor which rules it meets behind.
        ends = [end.rpartition(":")[0] for end in by_ipvs[1].split(", ")]
        lost = {(LOST, "")} if FAR in ends else set()
        return None if "policy" in made.words else lost | {(ADDRESSES[e], ANY) for e in ends}
    if packet.outcome == "dropped":
        return {(LOST, "")}
    if packet.outcome in ("rejected", "refused"):
        return {(REFUSED, "")}
    if packet.outcome == "unknown":
        return None
    end = packet.endpoints
    for hop in packet.hops:
        if hop.nat:
            end = hop.nat.after
    source = end.src
    if end.dst in ADDRESSES:
        if end.dst == FAR and ip_address(source) not in ip_network(MINE):
            return {(LOST, "")}
        listens = PORT if end.dst != PODS["pod-d"] else HOSTED
        return {(ADDRESSES[end.dst], source)} if end.dport == listens else {(REFUSED, "")}
    if end.dst == CLIENT:
        return {("client", source)} if end.dport in _OF_CLIENT else {(REFUSED, "")}
    if any(h.socket for h in packet.hops):
        return {(HERE, source)}
    # Another machine's address, or a cluster IP that no rule translates: the client forwards nothing.
    return {(LOST, "")}


_OF_CLIENT: frozenset[int] = frozenset()


@dataclass
class Told:
    """What was said of a node before any request was made."""

    stories: dict[Ask, list[PredictedPath]]
    findings: list[Finding]


def tell(made: Plan, of: NodeState) -> Told:
    """What `explain` and `audit` say."""
    stories = {ask: of.predictor.predict(PathQuery(SENDERS[ask.sender][0], 0, ask.address, ask.port)) for ask in asks(made)}
    return Told(stories, [finding for finding in audit(of) if finding.certain])


def compare(made: Plan, seen: dict[Ask, list[tuple[str, str]]], said: Told) -> Result:
    """The node's result."""
    result = Result(made.text, len(seen), certain=[f.name for f in said.findings])
    for ask, answers in seen.items():
        stories = said.stories[ask]
        told = [expected(s, made) for s in stories]
        if None in told:
            result.undecided += 1
            continue
        may = set().union(*(t for t in told if t))
        result.undecided += any(s.conditions for s in stories) and len(may) > 1
        for answer in answers:
            if answer not in may and (answer[0], ANY) not in may:
                result.wrong.append(f"{ask.text} got {answer}, explained was {_said(stories, told)}")
                break
    for finding in said.findings:
        result.wrong += [f"audit {finding.name}: {why}: {finding.cause}" for why in judge(finding, made, seen)]
    return result


def _said(predicted_paths: Sequence[PredictedPath], told: Sequence[Any]) -> str:
    return "; ".join(f"{sorted(t or ())} if {' and '.join(s.conditions) or 'chance'} ({s.packet.verdict})"
                     for s, t in zip(predicted_paths, told, strict=True))  # fmt: skip


def judge(finding: Finding, made: Plan, seen: dict[Ask, list[tuple[str, str]]]) -> Iterator[str]:
    """What of a certain finding is not so."""
    by = _JUDGES.get(finding.name)
    if by:
        yield from by(finding, made, {ask: [name for name, _ in answers] for ask, answers in seen.items()})


Names = dict[Ask, list[str]]


def _host_port(finding: Finding, made: Plan, seen: Names) -> Iterator[str]:
    port, _, _, rival = finding.key
    if rival == "elsewhere":
        clause = finding.cause.partition(" takes what is meant for ")[2].partition(": ")[0]
        whom = re.findall(r"Service (\S+?)[,:]? ", f"{clause} ")
        for ask, names in seen.items():
            service = next((s for s in made.services if (s.address, s.port) == (ask.address, ask.port)), None)
            meant = service and service.label in whom
            other = ask.address == CLIENT and ask.port == port and "any other machine" in finding.cause
            if ask.sender != "outside" and (meant or other) and _not(names, "pod-d"):
                yield f"{ask.text} got {names}"
        return
    here = {ask: names for ask, names in seen.items() if (ask.address, ask.port) == (NODE, port)}
    if "the pod gets every request" in finding.cause:
        yield from (f"{ask.text} got {names}" for ask, names in here.items() if _not(names, "pod-d"))
    elif "the Service gets every request" in finding.cause:
        yield from (f"{ask.text} got {names}" for ask, names in here.items() if "pod-d" in names or HERE in names)
    else:
        yield from _by_sender(finding, here)


def _by_sender(finding: Finding, here: Names) -> Iterator[str]:
    """What is said of each sender; where the order is open, those that come in go to one of them, and the node's own too."""
    words = {"outside": "from outside", "the node": "of the node itself", "a pod": "of pods"}
    for clause in re.split(r", (?=one of them gets|the Service gets)", finding.cause):
        every = "all requests that come in" in clause
        asked = {ask: names for ask, names in here.items() if every or words[ask.sender] in clause}
        if "the pod gets" in clause:
            yield from (f"{ask.text} got {names}" for ask, names in asked.items() if _not(names, "pod-d"))
        elif "the Service gets" in clause:
            yield from (f"{ask.text} got {names}" for ask, names in asked.items() if "pod-d" in names or HERE in names)
        for hook in ({"the node"}, {"outside", "a pod"}) if every or "one of them gets" in clause else ():
            names = [n for a, each in asked.items() if a.sender in hook for n in each if n != LOST]
            takers = {"pod-d" if n == "pod-d" else HERE if n == HERE else "service" for n in names}
            if len(takers) > 1 or HERE in takers:
                yield f"in one hook it went to {takers}"


def _not(names: list[str], wanted: str) -> bool:
    """Whether someone else got it. A pod that a policy cuts off gives no answer."""
    return any(name not in (wanted, LOST, REFUSED) for name in names)


def _process(finding: Finding, made: Plan, seen: Names) -> Iterator[str]:
    port = finding.key[0]
    reached = finding.cause.partition("the process sees only those ")[2]
    words = {"outside": "from outside", "the node": "of the node itself", "a pod": "of pods"}
    for ask, names in seen.items():
        if (ask.address, ask.port) != (NODE, port):
            continue
        refused, dropped = (f"{word} every request" in finding.cause for word in ("refuses", "drops"))
        only = {REFUSED} if refused else {LOST} if dropped else None
        if (words[ask.sender] in reached) != (HERE in names) or (only and not reached and set(names) != only):
            yield f"{ask.text} got {names}"


def _masquerade(finding: Finding, made: Plan, seen: Names) -> Iterator[str]:
    """Requests of the node to a Service whose pods are on the other node get no answer."""
    request = next(p.text for p in finding.proofs if p.what == "packet")
    found = re.search(r"-> ([\d.]+):(\d+)", request)
    assert found
    names = seen.get(Ask("the node", found[1], int(found[2])), [])
    if "far" in names:
        yield f"{request}: got {names}"


def _modes(finding: Finding, made: Plan, seen: Names) -> Iterator[str]:
    for address, port in re.findall(r"([\d.]+):(\d+) \(Service", finding.cause):
        for ask, names in seen.items():
            if (ask.address, ask.port) == (address, int(port)) and ask.sender != "the node" and set(names) != {REFUSED}:
                yield f"{ask.text} got {names}"


_JUDGES = {
    "hostport_takes_service": _host_port, "nodeport_host_process": _process, "missing_masquerade": _masquerade,
    "two_modes": _modes,
}  # fmt: skip
