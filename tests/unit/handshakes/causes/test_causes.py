# SPDX-License-Identifier: Apache-2.0
"""Each cause is found from its evidence, and not without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.shared_paths import assembled, delivered, rows_of
from tests.support.syns import (  # fmt: skip
    AFTER_DNAT,
    INSIDE,
    MS,
    POD_A,
    REQUESTED,
    SEQ,
    FakeInspector,
    at_listener,
    cause,
    decision_detail,
    last_ack,
    packet,
    syn,
    synack,
    verdicts,
    way,
)
from tracer.handshakes import _cause_helpers, causes
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramAction
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import (
    DecisionDetail,
    Drop,
    DropHop,
    Handshake,
    HandshakeHop,
    HookHop,
    Hop,
    Socket,
    SocketHop,
    TableHop,
)
from tracer.model.kube import Owner
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Flow, Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.procnet import BoundSocket

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = AttachedProgram("tc", 42, "cil_x")


def drop(reason: str, function: str = "tcp_v4_rcv", netns: Netns = POD_A, at: int = 20, hook: Hook = Hook.NONE) -> Hop:
    return DropHop(at, netns, hook, drop=Drop(reason, function))


def by_rule(verdict: Verdict, comment: str = "", text: str = "-j DROP", **more: Any) -> Hop:
    rule = Rule("ip", "filter", "INPUT", 3, text, comment=comment)
    trace = RuleTrace((RuleHit((RuleLocation("INPUT", 3),), rule, verdict, Evidence.OBSERVED),))
    return TableHop(9, HOST, Hook.INPUT, table="filter", verdict=verdict, rule_trace=trace, **more)


def test_every_cause_has_a_file_a_precedence_and_a_row_in_the_document() -> None:
    assert [name for name, _ in causes.causes()] == list(causes.ORDER)
    document = (ROOT / "docs/syns.md").read_text()
    assert all(f"`{name}`" in document for name in causes.ORDER)


def test_accepted() -> None:
    name, text, evidence = cause(syn(*at_listener(True, accept_queue=3)), synack(), last_ack())
    assert (name, text) == ("accepted", "accepted by nginx (pid 4242) in pod-a, accept queue 3/128")
    assert evidence == "observed"


def test_accepted_behind_the_node() -> None:
    result = cause(syn(), synack(), last_ack(None))
    assert result == ("accepted", "answered by 10.244.0.11:8080 and acknowledged", "observed")


def test_accepted_instead_of_a_connection_in_time_wait() -> None:
    detail = decision_detail("time-wait", 9, answer="taken over", state="TIME_WAIT")
    assert "taking over a connection in TIME_WAIT" in cause(syn(detail, *at_listener(True)), synack(), last_ack())[1]


def test_half_open() -> None:
    name, text, _ = cause(syn(*at_listener(True)), synack())
    assert (name, text) == ("half-open", "answered by nginx (pid 4242) in pod-a, the client's ACK has not come, SYN queue 1")
    assert cause(syn(), synack())[:2] == ("half-open", "answered by 10.244.0.11:8080, the client's ACK has not come")


def test_accept_queue_full() -> None:
    result = cause(syn(*at_listener(False, accept_queue=129)))
    assert result[:2] == (
        "accept queue full",
        "dropped: accept queue full 129/128 in pod-a, nginx (pid 4242) is slow to accept",
    )


def test_accept_queue_full_at_the_last_ack() -> None:
    name, text, _ = cause(syn(*at_listener(True)), synack(), last_ack(False, queue=129))
    assert name == "accept queue full" and text.startswith(
        "answered, but the client's ACK was dropped: accept queue full 129/128"
    )


def test_syn_queue_full() -> None:
    name, text, _ = cause(syn(*at_listener(False, syn_queue=128, syncookies=0)))
    assert (name, text) == ("SYN queue full", "dropped: SYN queue full 128/128 in pod-a, SYN cookies off, nginx (pid 4242)")


def test_the_last_quarter_of_the_backlog_is_for_known_peers() -> None:
    name, text, _ = cause(syn(*at_listener(False, syn_queue=100, syn_backlog=128, syncookies=0)))
    assert name == "SYN queue full" and "tcp_max_syn_backlog 128 keeps its last quarter" in text
    result = cause(syn(*at_listener(False, syn_queue=90, syn_backlog=128, syncookies=0), drop("NOT_SPECIFIED")))
    assert result[0] == "dropped", "there was room: the SYN was dropped for another reason"


@pytest.mark.parametrize(
    ("details", "expected"),
    [({"syn_queue": 128}, "SYN queue full 128/128"), ({"syn_queue": 2, "syncookies": 2}, "tcp_syncookies is 2")],
)
def test_cookie(details: dict[str, int], expected: str) -> None:
    name, text, _ = cause(syn(*at_listener(True, cookie=True, **details)), synack())
    assert name == "SYN cookie sent" and expected in text and text.endswith("the client has not come back with it")
    assert cause(syn(*at_listener(True, cookie=True, **details)), synack(), last_ack())[1].endswith("came back with it")


def test_old_timestamp_in_time_wait() -> None:
    detail = decision_detail("time-wait", 9, answer="ack", state="TIME_WAIT", ts_recent=5000, tsval=1000, seconds=4)
    result = cause(syn(detail, drop("NOT_SPECIFIED")), inspector=FakeInspector({"net/ipv4/tcp_timestamps": "1"}))
    assert result[0] == "old timestamp"
    assert "its timestamp 1000 is older than 5000 of 4 s ago" in result[1]
    assert "MASQUERADE gives clients the one address 10.244.0.1" in result[1]
    assert result[1].endswith("tcp_timestamps 1, tcp_tw_reuse does not exist, tcp_tw_recycle does not exist")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, "does not go beyond, and there is no timestamp to compare"),
        ({"ts_recent": 5000, "tsval": 5000}, "does not go beyond, and its timestamp 5000 is not newer"),
        ({"ts_recent": 5000, "tsval": 9000, "state": "FIN_WAIT2"}, "in FIN_WAIT2 in pod-a of the same ports"),
        ({"ts_recent": 5000, "tsval": 9000, "state": "FIN_WAIT2"}, "which expects another sequence number"),
        ({"state": "FIN_WAIT2", "answer": "reset"}, "refused: it hit a connection in FIN_WAIT2"),
    ],
)
def test_a_connection_in_time_wait_that_does_not_give_way(facts: dict[str, Any], expected: str) -> None:
    """The timestamp is not older, so PAWS is not the cause."""
    detail = decision_detail("time-wait", 9, **{"answer": "ack", "state": "TIME_WAIT", **facts})
    name, text, _ = cause(syn(detail, drop("NOT_SPECIFIED")))
    assert name == "connection in TIME_WAIT" and expected in text and "older" not in text


@pytest.mark.parametrize("reason", ["TCP_RFC7323_PAWS", "TCP_RFC7323_TW_PAWS", "TCP_RFC7323_PAWS_ACK"])
def test_old_timestamp_by_the_kernels_drop_reason(reason: str) -> None:
    assert cause(syn(drop(reason)))[0] == "old timestamp"


def test_tw_recycle_in_recordings() -> None:
    """On kernels before 4.12: no reason is given, the queues are not full, and the setting is on."""
    spaces = FakeInspector({"net/ipv4/tcp_tw_recycle": "1", "net/ipv4/tcp_timestamps": "1"})
    name, text, evidence = cause(syn(*at_listener(False)), inspector=spaces)
    assert (name, evidence) == ("old timestamp", "derived")
    assert "tcp_tw_recycle rejects such SYNs; MASQUERADE gives clients the one address 10.244.0.1" in text
    assert text.endswith("tcp_timestamps 1, tcp_tw_reuse does not exist, tcp_tw_recycle 1")
    assert cause(syn(*at_listener(False, accept_queue=129)), inspector=spaces)[0] == "accept queue full"


def test_old_connection() -> None:
    taken = SocketHop(9, POD_A, socket=Socket(0, "ESTABLISHED", 0, ""))
    name, text, _ = cause(syn(taken, drop("TCP_INVALID_SYN", "tcp_validate_incoming")))
    assert name == "old connection" and "in pod-a (ESTABLISHED, challenged)" in text


def test_no_listener() -> None:
    result = cause(syn(decision_detail("reset", 19, reason=1), drop("NO_SOCKET")))
    assert result[:2] == ("no listener", "no listener on 10.244.0.11:8080 in pod-a, answered with a reset")
    assert cause(syn(decision_detail("reset", 19, reason=0), drop("")))[:2] == result[:2], "kernels before 5.17 give no reason"
    assert cause(syn(decision_detail("reset", 19, reason=0, state="ESTABLISHED"), drop("")))[0] == "dropped"


def test_listener_on_another_address() -> None:
    spaces = FakeInspector(listening=(BoundSocket("127.0.0.1", 8080, 48213), BoundSocket("10.0.0.1", 80, 7)))
    result = cause(syn(drop("NO_SOCKET")), inspector=spaces)
    assert result[:2] == (
        "listener on another address",
        "no listener on 10.244.0.11:8080 in pod-a, but nginx (pid 4242) listens on 127.0.0.1:8080",
    )
    late = FakeInspector(listening=(BoundSocket("0.0.0.0", 8080, 48213),))
    assert cause(syn(drop("NO_SOCKET")), inspector=late)[0] == "no listener", "the listener that would take the SYN came later"


def test_rejected_dropped_and_no_endpoints() -> None:
    owner = Owner("Service", "default", "web", detail="no endpoints")
    answer = by_rule(Verdict.REJECT, "default/web has no endpoints", reject="icmp-port-unreachable", owner=owner)
    assert cause(syn(answer))[:2] == (
        "no endpoints",
        "no endpoint: rejected in filter/INPUT with icmp-port-unreachable: Service default/web, no endpoints",
    )
    assert cause(syn(by_rule(Verdict.REJECT, reject="tcp-reset")))[:2] == (
        "rejected", "REJECTed in filter/INPUT with tcp-reset",
    )  # fmt: skip
    assert cause(syn(by_rule(Verdict.DROP)))[:2] == ("dropped by rule", "DROPped in filter/INPUT")


def test_invalid() -> None:
    hops = [by_rule(Verdict.DROP), drop("NETFILTER_DROP", "nf_hook_slow", HOST)]
    name, text, evidence = cause(syn(*hops, flow=None, untracked="INVALID"))
    assert (name, evidence) == ("conntrack INVALID", "derived")
    assert text == "conntrack state INVALID: DROPped in filter/INPUT"
    matched = by_rule(Verdict.DROP, text="-m conntrack --ctstate INVALID -j DROP")
    assert cause(syn(matched, flow=None))[::2] == ("conntrack INVALID", "observed"), "the rule itself matches INVALID"


def test_conntracks_table() -> None:
    gone = drop("NETFILTER_DROP", "nf_hook_slow", HOST)
    spaces = FakeInspector({"net/netfilter/nf_conntrack_count": "8", "net/netfilter/nf_conntrack_max": "8"})
    result = cause(syn(gone, decision_detail("table-full", 30, HOST)), inspector=spaces)
    full = "dropped: conntrack's table is full"
    assert result[:2] == ("conntrack table full", f"{full} (8 of 8 entries when it was read afterwards)")
    spaces = FakeInspector({"net/netfilter/nf_conntrack_count": "4", "net/netfilter/nf_conntrack_max": "65536"})
    assert cause(syn(gone, decision_detail("table-full", 30, HOST)), inspector=spaces)[1] == full, "figures of a later time"
    name, text, _ = cause(syn(decision_detail("confirm", 15, HOST), gone))
    assert name == "conntrack race lost" and "(10.244.0.1:23711 -> 10.244.0.11:8080)" in text


@pytest.mark.parametrize(
    ("errno", "expected"),
    [(22, "the route is a blackhole"), (101, "there is no route"), (113, "unreachable"), (13, "prohibit"), (1, "EPERM")],
)
def test_no_route(errno: int, expected: str) -> None:
    name, text, _ = cause(syn(decision_detail("route", 15, HOST, errno=errno), drop("NOT_SPECIFIED", "ip_error", HOST)))
    assert name == "no route" and expected in text and text.startswith("dropped in node")


def test_no_route_over_ipv6() -> None:
    assert cause(syn(drop("NOT_SPECIFIED", "ip6_pkt_prohibit", HOST)))[1].startswith("dropped in node: the route says prohibit")


def test_neighbour() -> None:
    waiting = decision_detail("neighbour", 15, HOST, ipv4="10.244.0.99", ipv6="::", state=0)
    result = cause(syn(waiting, drop("NEIGH_FAILED", "arp_error_report", HOST)))
    assert result == ("neighbour failed", "dropped: next hop 10.244.0.99 on cni0 does not answer (ARP)", "observed")
    assert cause(syn(waiting))[2] == "derived", "the SYN still waits"
    by_ipv6 = decision_detail("neighbour", 15, HOST, ipv6="fe80::1", state=0)
    assert "next hop fe80::1 on cni0 has not answered neighbour discovery" in cause(syn(by_ipv6))[1], (
        "next hop of a route for IPv4"
    )
    assert cause(syn(waiting, drop("NOT_SPECIFIED", "neigh_invalidate", HOST))) == result, "IPv6 on older kernels"
    assert cause(syn(drop("NOT_SPECIFIED", "neigh_invalidate", HOST)))[0] == "dropped", "no wait was seen"


@pytest.mark.parametrize(
    ("reason", "function", "name"),
    [
        ("IP_RPFILTER", "ip_rcv_finish_core", "rp_filter"), ("NOT_SPECIFIED", "ip_rcv_finish_core", "martian source"),
        ("TCP_CSUM", "tcp_v4_rcv", "bad checksum"), ("TC_INGRESS", "sch_handle_ingress", "tc"), ("SOMETHING", "f", "dropped"),
        ("OVS_DROP_LAST_ACTION", "do_execute_actions", "dropped"),
    ],
)  # fmt: skip
def test_other_drops(reason: str, function: str, name: str) -> None:
    result = cause(syn(drop(reason, function, HOST)))
    assert result[0] == name and result[1].startswith("dropped")
    assert (result[2] == "derived") == (name == "martian source")
    assert ("in the Open vSwitch datapath: OVS_DROP_LAST_ACTION" in result[1]) == (function == "do_execute_actions")


@pytest.mark.parametrize(
    ("detail", "function", "text", "evidence"),
    [
        ({"what": "queue-answer", "verdict": "DROP", "by": "process", "pid": 9, "process": "ids"}, "nfqnl_reinject",
         "dropped behind queue 7 (NFQUEUE): pid 9 ids answered DROP", "observed"),
        ({"what": "queue-refused", "errno": 105, "by": "queue full", "waiting": 2, "maximum": 2}, "nf_queue",
         "dropped at queue 7 (NFQUEUE), which is full: 2 packets wait, maximum 2", "observed"),
        ({"what": "queue-answer", "verdict": "DROP"}, "nfqnl_reinject",
         "dropped behind a queue (NFQUEUE): its process did not let it pass or ended, or", "derived"),
    ],
)  # fmt: skip
def test_a_queue(detail: dict[str, Any], function: str, text: str, evidence: str) -> None:
    facts = dict(detail)
    result = cause(syn(decision_detail(facts.pop("what"), 15, HOST, queue=7, **facts), drop("NOT_SPECIFIED", function, HOST)))
    assert (result[0], result[2]) == ("dropped", evidence) and result[1].startswith(text)


@pytest.mark.parametrize(
    ("reason", "point", "candidates", "doubt", "name", "evidence"),
    [
        ("TC_INGRESS", AttachPoint.TC_INGRESS, (PROGRAM,), "", "tc", "derived"),
        ("TC_INGRESS", AttachPoint.TC_INGRESS, (PROGRAM, PROGRAM), "which of them is not known", "tc", "observed"),
        ("NOT_SPECIFIED", AttachPoint.XDP, (PROGRAM,), "", "XDP", "derived"),
        ("", AttachPoint.TC_EGRESS, (PROGRAM,), "this kernel gives no reason", "dropped", "derived"),
        ("BPF_CGROUP_EGRESS", AttachPoint.CGROUP_EGRESS, (PROGRAM,), "", "cgroup", "derived"),
        ("SOCKET_FILTER", AttachPoint.CGROUP_INGRESS, (PROGRAM,), "", "cgroup", "derived"),
        (
            "SOCKET_FILTER",
            AttachPoint.CGROUP_INGRESS,
            (PROGRAM,),
            "or the socket's own filter did",
            "socket filter",
            "observed",
        ),
    ],
)
def test_programs(
    reason: str, point: AttachPoint, candidates: tuple[AttachedProgram, ...], doubt: str, name: str, evidence: str
) -> None:
    known = ProgramAction(point, "eth0", candidates, doubt)
    result = cause(syn(DropHop(20, HOST, verdict=Verdict.DROP, drop=Drop(reason, "f", program=known))))
    assert result == (name, f"dropped {known.text}", evidence)


@pytest.mark.parametrize(("candidates", "evidence"), [((PROGRAM,), "derived"), ((PROGRAM, PROGRAM), "observed")])
def test_a_refusal_by_sk_lookup_is_no_missing_listener(candidates: tuple[AttachedProgram, ...], evidence: str) -> None:
    known = ProgramAction(AttachPoint.SK_LOOKUP, "", candidates, "" if len(candidates) == 1 else "which of them is not known")
    result = cause(syn(DropHop(20, HOST, verdict=Verdict.DROP, drop=Drop("NO_SOCKET", "tcp_v4_rcv", program=known))))
    assert result == ("sk_lookup", f"refused {known.text}", evidence)


def test_a_synack_that_bypasses_the_translation_is_not_recognised() -> None:
    other = AFTER_DNAT.reversed
    reset = packet(AFTER_DNAT, "RST", way(9 * MS), 4, seq=SEQ + 1, ack=0)
    answer = synack(ends=other, hops=[drop("NO_SOCKET", netns=Netns("client"), at=6 * MS)], flow=None)
    name, text, evidence = cause(syn(*at_listener(True)), answer, reset)
    assert (name, evidence) == ("SYN-ACK not recognised", "observed")
    assert "came from 10.244.0.11:8080, not from 192.168.56.10:30285" in text and text.endswith("and the client reset it")
    assert cause(syn(*at_listener(True)), answer)[2] == "derived", "no reset was seen"
    assert cause(syn(*at_listener(True)), answer, last_ack())[0] == "accepted", "the client continued from it"
    partly = synack(ends=other, hops=[HookHop(6 * MS, Netns("client"), Hook.INPUT)], flow=None, complete=False)
    assert cause(syn(*at_listener(True)), partly)[0] == "half-open", "a lost event may be the translation"


def test_a_synack_that_is_dropped_on_its_path_back() -> None:
    answer = synack(hops=[*synack().hops, by_rule(Verdict.DROP)])
    assert cause(syn(*at_listener(True)), answer)[1].endswith("but did not get back: DROPPED in filter/INPUT")


def test_the_clients_reset_alone() -> None:
    reset = packet(AFTER_DNAT, "RST", way(9 * MS), 4, seq=SEQ + 1)
    name, text, _ = cause(syn(*at_listener(True)), reset)
    assert name == "SYN-ACK not recognised" and "to 10.244.0.11:8080, while it had asked 192.168.56.10:30285" in text


def test_refused_elsewhere() -> None:
    reset = packet(INSIDE.reversed, "RST ACK", [HookHop(4 * MS, HOST, Hook.PREROUTING, in_iface="cni0")], 4, ack=SEQ + 1)
    assert cause(syn(), reset)[:2] == ("refused elsewhere", "answered with a reset by 10.244.0.11:8080")
    ends = Endpoints("10.9.0.1", 0, "192.168.56.1", 0)
    flow = Flow(REQUESTED, INSIDE.reversed, "RELATED", True, 0, HOST)
    hops = (HookHop(4 * MS, HOST, Hook.PREROUTING),)
    icmp = Packet(5, 4 * MS, HOST, "eth1", "IPv4", "ICMP", ends, flow=flow, hops=hops, icmp=(3, 1))
    assert cause(syn(), icmp)[1] == "answered with ICMP icmp-host-unreachable by 10.9.0.1"


def test_no_answer() -> None:
    result = cause(syn())
    assert result == ("no answer", "left by cni0, no SYN-ACK in 1 s: 10.244.0.11:8080 should have answered", "derived")


def test_an_incomplete_syn_has_no_known_cause() -> None:
    assert cause(syn(complete=False))[:2] == ("not known", "not known, a part of its way was lost: forwarded to cni0")


def cause_with_drops_only(*packets: Packet) -> tuple[str, str]:
    """The cause in a run with --drops-only."""
    syns = HandshakeAnalyzer(FakeInspector(), partial=True)
    for each in packets:
        syns.feed(each)
    (only,) = syns.flush()
    return only.cause.name, only.cause.text


def test_an_ack_that_was_not_recorded_is_not_reported_as_missing() -> None:
    by_address = "answered by 10.244.0.11:8080; what came after it was not recorded"
    assert cause_with_drops_only(syn(), synack()) == ("answered", by_address)
    by_process = "answered by nginx (pid 4242) in pod-a; what came after it was not recorded"
    assert cause_with_drops_only(syn(*at_listener(True)), synack()) == ("answered", by_process), "the last ACK is not recorded"
    assert cause_with_drops_only(syn(*at_listener(True))) == ("answered", by_process)
    aborts = packet(REQUESTED, "RST", [*way(9 * MS)], 4, seq=SEQ + 1)
    assert cause_with_drops_only(syn(), synack(), aborts)[0] == "answered", "an ACK may have come before the reset"
    assert cause(syn(), synack(), aborts)[0] == "SYN-ACK not recognised"


def test_with_one_direction_only_no_answer_is_missing() -> None:
    """As with --src: the SYN-ACK or the last ACK may have come unseen."""

    def cause_of_one_direction(*packets: Packet) -> tuple[str, str]:
        syns = HandshakeAnalyzer(FakeInspector(), one_sided=True)
        for each in packets:
            syns.feed(each)
        (only,) = syns.flush()
        return only.cause.name, only.cause.text

    assert cause_of_one_direction(syn()) == (
        "not known", "not known, the filter may leave out its answer: forwarded to cni0"
    )  # fmt: skip
    assert cause_of_one_direction(syn(*at_listener(True)))[0] == "answered"


def test_a_syn_sent_again_to_a_half_open_connection() -> None:
    at_half_open = HandshakeHop(10, POD_A, handshake=Handshake("request", False, 0, 128, 1))
    again = syn(at_half_open, at=1000 * MS, identity=9)
    first, second = verdicts(syn(*at_listener(True)), again)
    assert (first.cause.name, second.cause.name) == ("half-open", "half-open already")
    assert (first.again, second.again) == (0, 1)


@pytest.mark.parametrize(
    ("tsval", "recent", "old"),
    [(1, 5000, True), (5000, 1, False), (10, 10, False), (9, 10, True), (2**32 - 5, 4, True), (2**32 - 5, 0, False)],
)
def test_timestamps_are_compared_as_tcp_does(tsval: int, recent: int, old: bool) -> None:
    assert _cause_helpers.is_older(tsval, recent) is old


def test_numbers_of_a_decision_detail() -> None:
    assert DecisionDetail("listener", {"accept_queue": 3, "x": "y"}).number("accept_queue") == 3
    assert DecisionDetail("listener", {"x": "y"}).number("x") == DecisionDetail("listener", {}).number("accept_queue") == 0


class PathOnly(ConnectionAttempt):
    """An attempt of which nothing but the SYN may be read."""

    def __getattribute__(self, name: str) -> Any:
        assert name in ("syn", "reached", "process", "asked") or name not in ConnectionAttempt.__dataclass_fields__, name
        return super().__getattribute__(name)


class Unasked(FakeInspector):
    """Answers no question."""

    def ask(self, *args: Any, **more: Any) -> Any:
        raise AssertionError(args)


def test_causes_of_the_path_look_at_the_syn_alone() -> None:
    asking = dict(causes.causes())
    assert asking.keys() > causes.OF_PATH
    for name in sorted(causes.OF_PATH):
        assert asking[name](PathOnly(syn(), 0), Unasked()) is None, name


def test_causes_that_did_not_apply_to_a_path_are_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def noting(name: str, classify: causes.Classify) -> causes.Classify:
        def note(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
            asked[-1].append(name)
            return classify(attempt, inspector)

        return note

    each = tuple((name, noting(name, classify)) for name, classify in causes.causes())
    monkeypatch.setattr(causes, "causes", lambda: each)
    packets, _ = assembled([rows_of(*(delivered(n, 40000 + n, tcp_flags=2, state=10) for n in (1, 2, 3)))], True)
    for each_syn in packets:
        asked.append([])
        causes.cause_of(ConnectionAttempt(each_syn, 0), FakeInspector())
    assert asked[0] == asked[1], "the first packet has no path that others share"
    assert asked[2] == [name for name in asked[1] if name not in causes.OF_PATH or name == asked[1][-1]] != asked[1]
