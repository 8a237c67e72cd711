# SPDX-License-Identifier: Apache-2.0
"""SYNs that reach a listener and are dropped there: full queues, timestamps that seem to go back, a connection in TIME_WAIT.

The client sees intermittent timeouts: the packet arrives, no rule drops it, and no RST is sent. What the listener did is the
SYN's cause (tracer/handshakes); this module counts how many SYNs it accepted and dropped.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.hop import Handshake, HandshakeHop, RewriteHop, SocketHop, alike
from tracer.model.kube import ObjectReference, Owner, pod_text
from tracer.model.namespace_name import Netns, is_host
from tracer.model.packet import Packet
from tracer.node.node_questions import ListenerCounters, ListenerSetting
from tracer.util.endpoint_format import format_endpoint as place_of
from tracer.util.questions import value_of

RECYCLE, TIMESTAMPS = ListenerSetting("net/ipv4/tcp_tw_recycle"), ListenerSetting("net/ipv4/tcp_timestamps")
SETTINGS = (
    ListenerSetting("net/core/somaxconn"),
    ListenerSetting("net/ipv4/tcp_max_syn_backlog"),
    ListenerSetting("net/ipv4/tcp_syncookies"),
    TIMESTAMPS,
    RECYCLE,
)
COUNTERS = ListenerCounters()
ASKS = (*SETTINGS, COUNTERS)
KINDS = {
    "accept queue full": "accept queue",
    "SYN queue full": "SYN queue",
    "old timestamp": "timestamps",
    "connection in TIME_WAIT": "TIME_WAIT",
}
"""SYN's cause -> the problem of the listener."""
MORE_PORTS = "Give the SNAT more addresses or ports, or keep client addresses (externalTrafficPolicy: Local)."


def find_syn(verdict: HandshakeVerdict, context: FindingContext) -> Finding | None:
    """Makes a finding from the cause of a SYN that a listener dropped."""
    attempt = verdict.attempt
    if not attempt:
        return None
    asked = attempt.asked.dst, attempt.asked.dport
    context.counts["asked", asked] += 1
    shakes = [h.handshake for h in alike(attempt.syn.hops) if isinstance(h, HandshakeHop)]
    refused = any(shake.accepted is False and shake.stage == "SYN" for shake in shakes)
    kind = KINDS.get(verdict.cause.name) or ("unknown" if refused else "")
    if not kind and not attempt.syn.handshake:
        return None
    place = attempt.place, attempt.reached.dst, attempt.reached.dport
    context.counts["syn", place] += 1
    # Verdicts come in the order in which they are settled, not in the order of the SYNs.
    began = context.since.get(("syn", place), attempt.syn.time)
    context.since["syn", place] = min(began, attempt.syn.time)
    if not kind:
        return None
    context.counts["dropped", place] += 1
    context.counts["asked in vain", asked] += 1
    return _finding(verdict, attempt, kind, place, context)


Place = tuple[Netns, str, int]
"""Network namespace, address and port of a listener."""


def _finding(
    verdict: HandshakeVerdict, attempt: ConnectionAttempt, kind: str, place: Place, context: FindingContext
) -> Finding:
    netns, address, port = place
    packet = _shows(attempt)
    shakes = (h.handshake for h in reversed(packet.hops) if isinstance(h, HandshakeHop))
    shake = next((s for s in shakes if s.stage != "request"), None)
    socket = next((h.socket for h in reversed(attempt.syn.hops) if isinstance(h, SocketHop)), None)
    pid, command = (socket.pid, socket.command) if socket else (0, "")
    where = place_of(address, port)
    pod, service = context.cluster.pod_at(address), _service(attempt.syn)
    who = f"{command} (pid {pid})" if pid else f"The process that listens on {where}"
    who += f" of pod {pod[0]}/{pod[1]}" if pod else ""
    what = f"{'SYNs' if packet.tcp_flags == 'SYN' else 'connections'} to {where}"
    what += f" (Service {service.label})" if service else ""
    ns = f"nsenter -t {pid} -n " if pid and not is_host(netns) else ""
    kind, cause, cure, certain = _why(kind, verdict.cause, shake, pid, who, what, ns, context)
    # For a SYN its cause is more informative than its verdict.
    how, known = (verdict.cause.text, verdict.cause.evidence) if packet is attempt.syn else (packet.verdict, Evidence.OBSERVED)
    came = place_of(packet.endpoints.src, packet.endpoints.sport)
    proofs = [FindingEvidence("packet", f"{packet.tcp_flags} {came} -> {where}: {how}", known.value)]
    if shake:
        queues = f"accept queue {shake.accept_queue}/{shake.accept_limit}, SYN queue {shake.syn_queue}"
        proofs.append(FindingEvidence("packet", f"when it came to the listener in {netns}: {queues}", "observed"))
    proofs.append(FindingEvidence("counter", _rate(packet, attempt, place, context), "observed"))
    proofs += _settings(pid, context) + _shared(packet, kind) + _named(address, pod, service, context)
    check = (
        f"`{ns}ss -ltn 'sport = :{port}'` shows Recv-Q (accept queue) and Send-Q (its limit); `{ns}nstat -az"
        f" 'TcpExtListen*' 'TcpExtPAWS*'`"
    )
    subject = ObjectReference("Pod", *pod[:2]) if pod else service.reference if service else None
    return Finding("", (netns, address, port, kind), cause, tuple(proofs), check, cure, certain, subject=subject)


def _service(syn: Packet) -> Owner | None:
    """Returns the requested Service: from the rule that translated the SYN, else from its destination."""
    rewrites = (h for h in reversed(syn.hops) if isinstance(h, RewriteHop) and not h.clone)
    by_rule = (h.owner for h in rewrites if h.nat.kind == "DNAT")
    return next((o for o in (*by_rule, syn.dst_owner) if o and o.kind == "Service"), None)


def _named(
    address: str, pod: tuple[str, str, str] | None, service: Owner | None, context: FindingContext
) -> list[FindingEvidence]:
    """The evidence for the listener's pod and Service; empty if they are not known."""
    asked = f"asked for as Service {service.label}" + (f", {service.detail}" if service.detail else "") if service else ""
    is_pod = f"{address} is {pod_text(*pod)}" if pod else ""
    source = "CNI result cache" if context.cluster.sandboxes.at(address) else "Kubernetes API"
    return [FindingEvidence("object", "; ".join(filter(None, (is_pod, asked))), source)] if pod or service else []


def _shows(attempt: ConnectionAttempt) -> Packet:
    """Returns the dropped packet: the SYN, or the client's last ACK."""
    return next((p for p in attempt.acks if p.handshake and p.handshake.accepted is False), attempt.syn)


def _why(
    kind: str, syn_cause: Cause, shake: Handshake | None, pid: int, who: str, what: str, ns: str, context: FindingContext
) -> tuple[str, str, str, bool]:
    """Returns (kind, cause, cure, is certain). ns: prefix that runs a command in the listener's network namespace."""
    if kind == "accept queue" and shake:
        full = f"{shake.accept_queue} are waiting, {shake.accept_limit} are allowed"
        return (
            "accept queue", f"{who} does not accept connections as fast as they come: its accept queue is full"
            f" ({full}), and the kernel"
            f" drops {what} without an answer.",
            "Find out why the process does not call accept() (stuck, or too few workers); a longer queue (listen's backlog and"
            " net.core.somaxconn) only helps with bursts.", True,
        )  # fmt: skip
    if kind == "timestamps":
        # With tw_recycle the timestamps are the likely reason. It is certain only if the kernel reported it: kernels that do
        # (5.17) no longer have tw_recycle (4.12).
        value = _recycle(pid, context)
        recycle = value == "1"
        old = syn_cause.evidence is Evidence.OBSERVED
        word = "because" if old else "most likely because"
        by = "net.ipv4.tcp_tw_recycle is on" if recycle else "a connection of the same ports is still there, or in TIME_WAIT"
        by += ", or net.ipv4.tcp_tw_recycle is on (it was not read)" if value is None and not old else ""
        return (
            "timestamps", f"The kernel drops {what} {word} their TCP timestamps are older than what came from the same address"
            f" before: behind one SNAT address each client has a clock of its own, on newer kernels each connection, and {by}.",
            f"`{ns}sysctl -w net.ipv4.tcp_tw_recycle=0` (Linux before 4.12 only; newer kernels have no such setting)" if recycle
            else MORE_PORTS, old,
        )  # fmt: skip
    if kind == "TIME_WAIT":
        return (
            "TIME_WAIT", f"The kernel does not take {what} because a connection of the same ports is still in TIME_WAIT, and"
            " neither their timestamps nor their sequence numbers are newer: behind SNAT such SYNs come from other ports, or"
            " other clients.",
            MORE_PORTS, True,
        )  # fmt: skip
    if kind == "SYN queue" and shake:
        return (
            "SYN queue", f"The SYN queue of {who} is full ({shake.syn_queue} half-open connections,"
            f" {shake.accept_limit} are allowed) and"
            f" SYN cookies are off: the kernel drops {what}.",
            f"`{ns}sysctl -w net.ipv4.tcp_syncookies=1`, and a longer listen backlog; many half-open connections may be an"
            " attack.", True,
        )  # fmt: skip
    return (
        "unknown", f"The kernel drops {what} at the listener; its queues are not full, and it gives no reason that"
        f" this tracer knows.",
        "Compare the counters of the check over a minute; the one that grows names the reason.", False,
    )  # fmt: skip


def _rate(packet: Packet, attempt: ConnectionAttempt, place: Place, context: FindingContext) -> str:
    """How many SYNs this listener dropped, and how many SYNs to the same requested address were dropped by any listener."""
    syns, dropped = context.counts["syn", place], context.counts["dropped", place]
    seconds = (packet.time - context.since.get(("syn", place), packet.time)) / 1e9
    text = f"{dropped} dropped, {syns} SYN{'s' * (syns != 1)} seen"
    text += f" in {seconds:.1f} s" if seconds >= 0.05 else ""
    asked = attempt.asked.dst, attempt.asked.dport
    if asked == place[1:]:
        return text
    every, in_vain = context.counts["asked", asked], context.counts["asked in vain", asked]
    return f"{text}; of {every} to {place_of(*asked)}, {in_vain} dropped"


def _settings(pid: int, context: FindingContext) -> list[FindingEvidence]:
    """The evidence from the counters and settings of the listener's namespace; empty if the process is not known."""
    if not pid:
        return []
    counted = value_of(context.ask(COUNTERS, pid)) or {}
    grown = ", ".join(
        f"{n} {counted[n]}"
        for n in ("ListenOverflows", "ListenDrops", "PAWSPassive", "PAWSActive", "PAWSEstab")
        if counted.get(n)
    )
    values = [(setting.name.replace("/", "."), value_of(context.ask(setting, pid))) for setting in SETTINGS]
    settings = ", ".join(f"{name} = {value}" for name, value in values if value)
    found = [FindingEvidence("counter", f"since boot, in its namespace: {grown}", f"/proc/{pid}/net/netstat")] if grown else []
    return found + ([FindingEvidence("setting", settings, "/proc/sys")] if settings else [])


def _recycle(pid: int, context: FindingContext) -> str | None:
    """tcp_tw_recycle of the listener's namespace; "" = this kernel has no such setting, None = not read.

    Every kernel has tcp_timestamps: without it, the settings of that namespace cannot be read.
    """
    value = value_of(context.ask(RECYCLE, pid)) if pid else None
    return value if value or (pid and value_of(context.ask(TIMESTAMPS, pid))) else None


def _shared(packet: Packet, kind: str) -> list[FindingEvidence]:
    """The evidence for an SNAT that gives many clients the same address."""
    rewrites = (h for h in packet.hops if isinstance(h, RewriteHop))
    hop = next((h for h in rewrites if h.nat.kind in ("SNAT", "MASQUERADE")), None)
    if not hop or kind not in ("timestamps", "TIME_WAIT"):
        return []
    whose = f" ({hop.owner.text})" if hop.owner else ""
    return [FindingEvidence("packet", f"{hop.nat.kind} {hop.nat.before.src} -> {hop.nat.after.src}{whose}", hop.evidence.value)]
