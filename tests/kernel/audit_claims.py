# SPDX-License-Identifier: Apache-2.0
"""Compares real requests on one node with the outcomes that `explain` predicts and the certain findings of `audit`."""

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
from tracer.model.hop import RewriteHop, SocketHop
from tracer.model.prediction import PredictedPath
from tracer.node.node import HostReader
from tracer.predict.query import PathQuery
from tracer.rules import inventory

SENDERS = {"outside": (CLIENT, "client"), "the node": (NODE, None), "a pod": (PODS["pod-c"], "pod-c")}
REFUSED, LOST, HERE = "refused", "no answer", "the node's process"
ANY = "any source"
TRIES = 2
"""How often each request is made: a random choice may take another endpoint."""


@dataclass(frozen=True)
class Request:
    """A request. sender: a key of SENDERS."""

    sender: str
    address: str
    port: int

    @property
    def text(self) -> str:
        return f"{self.sender} -> {self.address}:{self.port}"


@dataclass
class Result:
    """The result of one node. certain: the names of the audit's certain findings. wrong: one sentence for each error."""

    text: str
    requests: int = 0
    undecided: int = 0
    certain: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def requests(made: Plan) -> Iterator[Request]:
    """The requests that are made on a node."""
    for sender in SENDERS:
        for s in made.services:
            yield Request(sender, s.address, s.port)
        node_ports = {s.node_port for s in made.services if s.node_port}
        for port in sorted(node_ports | {h.port for h in made.host_ports} | set(made.listens)):
            yield Request(sender, NODE, port)
        if sender != "outside":
            for h in made.host_ports:
                yield Request(sender, CLIENT, h.port)


def send(request: Request, timeout: float) -> tuple[str, str]:
    """Makes a request; returns the name of the server, or how it failed, and the source address that the server saw, or ""."""
    with entered(SENDERS[request.sender][1]):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with sock:
        sock.settimeout(timeout)
        try:
            sock.connect((request.address, request.port))
            name, _, seen = sock.recv(200).decode().partition("\t")
        except TimeoutError:
            return LOST, ""
        except (ConnectionRefusedError, ConnectionResetError):
            return REFUSED, ""
        except OSError as e:
            return (LOST if e.errno in (1, 101, 113) else f"errno {e.errno}"), ""
    return name, seen.strip()


def send_all(made: Plan, timeout: float, parallel: int) -> dict[Request, list[tuple[str, str]]]:
    """Makes all requests, TRIES times each; returns the results of send() for each request."""
    all_requests = list(requests(made))
    with ThreadPoolExecutor(parallel) as pool:
        answers = [list(pool.map(lambda a: send(a, timeout), all_requests)) for _ in range(TRIES)]
    return {request: [each[at] for each in answers] for at, request in enumerate(all_requests)}


def state(made: Plan, proc: Path) -> NodeState:
    """The state that the audit reads in this namespace. proc: a directory like /proc, of this namespace."""
    store = ObjectStore("node-1")
    store.load(made.objects())
    local = frozenset({NODE, "10.244.0.1", "10.244.0.254", "127.0.0.1"})
    found = inventory.read(True)
    assert not found.unread, found.unread
    return NodeState(FindingContext(ClusterView(store, local=local), HostReader(proc)), found)


def expected(predicted: PredictedPath, made: Plan) -> set[tuple[str, str]] | None:
    """Possible results (receiver, source address or "") of a request on this predicted path; None if it leaves them open."""
    packet = predicted.packet
    by_ipvs = re.search(r"by IPVS, .* one of (.*)", packet.verdict)
    if by_ipvs:
        # The path has the possible receivers, but not whether the packet is masqueraded, nor the rules after IPVS.
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
        if isinstance(hop, RewriteHop):
            end = hop.nat.after
    source = end.src
    if end.dst in ADDRESSES:
        if end.dst == FAR and ip_address(source) not in ip_network(MINE):
            return {(LOST, "")}
        listens = PORT if end.dst != PODS["pod-d"] else HOSTED
        return {(ADDRESSES[end.dst], source)} if end.dport == listens else {(REFUSED, "")}
    if end.dst == CLIENT:
        return {(REFUSED, "")}  # the client has no server
    if any(isinstance(h, SocketHop) for h in packet.hops):
        return {(HERE, source)}
    # Another machine's address, or a cluster IP that no rule translates: the client forwards nothing.
    return {(LOST, "")}


@dataclass
class Claims:
    """What the tracer reports about a node before any request is made."""

    paths: dict[Request, list[PredictedPath]]
    findings: list[Finding]


def read_claims(made: Plan, of: NodeState) -> Claims:
    """The predicted paths of `explain` and the certain findings of `audit`."""
    paths = {
        request: of.predictor.predict(PathQuery(SENDERS[request.sender][0], 0, request.address, request.port))
        for request in requests(made)
    }
    return Claims(paths, [finding for finding in audit(of) if finding.certain])


def compare(made: Plan, seen: dict[Request, list[tuple[str, str]]], claims: Claims) -> Result:
    """Compares the results of the requests with the claims."""
    result = Result(made.text, len(seen), certain=[f.name for f in claims.findings])
    for request, answers in seen.items():
        paths = claims.paths[request]
        expected_results = [expected(s, made) for s in paths]
        if None in expected_results:
            result.undecided += 1
            continue
        allowed = set().union(*(t for t in expected_results if t))
        result.undecided += any(s.conditions for s in paths) and len(allowed) > 1
        for answer in answers:
            if answer not in allowed and (answer[0], ANY) not in allowed:
                result.wrong.append(f"{request.text} got {answer}, explained was {_explained_text(paths, expected_results)}")
                break
    for finding in claims.findings:
        result.wrong += [f"audit {finding.name}: {why}: {finding.cause}" for why in contradictions(finding, made, seen)]
    return result


def _explained_text(predicted_paths: Sequence[PredictedPath], expected_results: Sequence[Any]) -> str:
    return "; ".join(f"{sorted(t or ())} if {' and '.join(s.conditions) or 'chance'} ({s.packet.verdict})"
                     for s, t in zip(predicted_paths, expected_results, strict=True))  # fmt: skip


def contradictions(finding: Finding, made: Plan, seen: dict[Request, list[tuple[str, str]]]) -> Iterator[str]:
    """Contradictions between a certain finding and the results, one sentence each."""
    find = _JUDGES.get(finding.name)
    if find:
        yield from find(finding, made, {request: [name for name, _ in answers] for request, answers in seen.items()})


Names = dict[Request, list[str]]


def _host_port(finding: Finding, made: Plan, seen: Names) -> Iterator[str]:
    port, _, _, rival = finding.key
    if rival == "elsewhere":
        clause = finding.cause.partition(" takes what is meant for ")[2].partition(": ")[0]
        services = re.findall(r"Service (\S+?)[,:]? ", f"{clause} ")
        for request, names in seen.items():
            service = next((s for s in made.services if (s.address, s.port) == (request.address, request.port)), None)
            meant = service and service.label in services
            other = request.address == CLIENT and request.port == port and "any other machine" in finding.cause
            if request.sender != "outside" and (meant or other) and _other_receiver(names, "pod-d"):
                yield f"{request.text} got {names}"
        return
    here = {request: names for request, names in seen.items() if (request.address, request.port) == (NODE, port)}
    if "the pod gets every request" in finding.cause:
        yield from (f"{request.text} got {names}" for request, names in here.items() if _other_receiver(names, "pod-d"))
    elif "the Service gets every request" in finding.cause:
        yield from (f"{request.text} got {names}" for request, names in here.items() if "pod-d" in names or HERE in names)
    else:
        yield from _by_sender(finding, here)


def _by_sender(finding: Finding, here: Names) -> Iterator[str]:
    """Checks the clause for each sender. If the order is open, all requests of one hook must have the same receiver."""
    words = {"outside": "from outside", "the node": "of the node itself", "a pod": "of pods"}
    for clause in re.split(r", (?=one of them gets|the Service gets)", finding.cause):
        incoming = "all requests that come in" in clause
        selected = {request: names for request, names in here.items() if incoming or words[request.sender] in clause}
        if "the pod gets" in clause:
            yield from (f"{request.text} got {names}" for request, names in selected.items() if _other_receiver(names, "pod-d"))
        elif "the Service gets" in clause:
            yield from (
                f"{request.text} got {names}" for request, names in selected.items() if "pod-d" in names or HERE in names
            )
        for senders in ({"the node"}, {"outside", "a pod"}) if incoming or "one of them gets" in clause else ():
            names = [n for a, each in selected.items() if a.sender in senders for n in each if n != LOST]
            takers = {"pod-d" if n == "pod-d" else HERE if n == HERE else "service" for n in names}
            if len(takers) > 1 or HERE in takers:
                yield f"in one hook it went to {takers}"


def _other_receiver(names: list[str], receiver: str) -> bool:
    """Whether another receiver got a request. A pod that a policy cuts off gives no answer."""
    return any(name not in (receiver, LOST, REFUSED) for name in names)


def _process(finding: Finding, made: Plan, seen: Names) -> Iterator[str]:
    port = finding.key[0]
    reached = finding.cause.partition("the process sees only those ")[2]
    words = {"outside": "from outside", "the node": "of the node itself", "a pod": "of pods"}
    for request, names in seen.items():
        if (request.address, request.port) != (NODE, port):
            continue
        refused, dropped = (f"{word} every request" in finding.cause for word in ("refuses", "drops"))
        only = {REFUSED} if refused else {LOST} if dropped else None
        if (words[request.sender] in reached) != (HERE in names) or (only and not reached and set(names) != only):
            yield f"{request.text} got {names}"


def _masquerade(finding: Finding, made: Plan, seen: Names) -> Iterator[str]:
    """Requests of the node to a Service with pods on the other node get no answer."""
    request = next(p.text for p in finding.proofs if p.what == "packet")
    found = re.search(r"-> ([\d.]+):(\d+)", request)
    assert found
    names = seen.get(Request("the node", found[1], int(found[2])), [])
    if "far" in names:
        yield f"{request}: got {names}"


def _modes(finding: Finding, made: Plan, seen: Names) -> Iterator[str]:
    for address, port in re.findall(r"([\d.]+):(\d+) \(Service", finding.cause):
        for request, names in seen.items():
            if (
                (request.address, request.port) == (address, int(port))
                and request.sender != "the node"
                and set(names) != {REFUSED}
            ):
                yield f"{request.text} got {names}"


_JUDGES = {
    "hostport_takes_service": _host_port, "nodeport_host_process": _process, "missing_masquerade": _masquerade,
    "two_modes": _modes,
}  # fmt: skip
