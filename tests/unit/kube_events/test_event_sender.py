# SPDX-License-Identifier: Apache-2.0
"""Events in an API server: what they say, how often they are written, and what each fault of the server does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support.api_events import WriteFault
from tests.support.api_server import ApiServer
from tracer.kube.api_client import ApiClient
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube_events.event_counts import EventCounts, EventResult
from tracer.kube_events.event_sender import (
    AT_ONCE,
    AT_ONCE_FOR_ONE,
    KEPT_SECONDS,
    MOST_SERIES,
    SIMILAR,
    UPDATE_SECONDS,
    WINDOW_SECONDS,
    EventSender,
)
from tracer.kube_events.waiting_findings import MOST_WAITING, WaitingFinding, WaitingFindings
from tracer.model.finding import Finding
from tracer.model.kube import ObjectReference
from tracer.util.evictions import evictions
from tracer.util.worker import user_warnings

EPOCH_NS = 1_795_000_000_123_456_000
SECOND = 1_000_000_000
POD, SERVICE = ObjectReference("Pod", "shop", "web-1"), ObjectReference("Service", "shop", "cart")
OBJECTS: list[dict[str, Any]] = [
    {"kind": "Pod", "metadata": {"namespace": "shop", "name": "web-1", "uid": "11111111-2222"}, "spec": {}},
    {"kind": "Pod", "metadata": {"namespace": "other", "name": "web-1", "uid": "99999999-9999"}, "spec": {}},
    {"kind": "Service", "metadata": {"namespace": "shop", "name": "cart", "uid": "33333333-4444"}, "spec": {}},
]


def finding(name: str = "syn_dropped", key: object = 1, subject: ObjectReference | None = POD, cause: str = "") -> Finding:
    return Finding(name, (key,), cause or "It is so.", (), "Look.", "Mend.", True, 1, EPOCH_NS, EPOCH_NS, (1,), subject)


@dataclass
class Sending:
    """A sender with a clock of its own."""

    server: ApiServer
    now: float = 1000.0
    counts: EventCounts = field(default_factory=EventCounts)

    def __post_init__(self) -> None:
        access = ApiAccess("http", "127.0.0.1", self.server.port, token="t")
        self.sender = EventSender(ApiClient(access, 2.0), access, "node-a", self.counts, self.now)

    def take(self, *found: Finding, count: int = 1, at: float = 0.0) -> None:
        time = EPOCH_NS + round(at * SECOND)
        for each in found:
            self.sender.take(WaitingFinding(each, time, time, count), self.now)

    def step(self, seconds: float = 0.0) -> bool:
        self.now += seconds
        return self.sender.step(self.now)

    @property
    def events(self) -> list[dict[str, Any]]:
        assert self.server.reported.refused == []
        return list(self.server.reported.events.values())

    @property
    def results(self) -> dict[str, int]:
        return {result: count for result, count in self.counts.read().items() if count}


@pytest.fixture
def sending() -> Iterator[Sending]:
    with ApiServer(OBJECTS) as server:
        server.reported.validates = True
        yield Sending(server)


def test_an_event_about_a_pod(sending: Sending) -> None:
    sending.take(finding(cause="web \x1b[31m drops\nSYNs."))
    assert sending.step()
    (event,) = sending.events
    name = event["metadata"].pop("name")
    assert name.startswith("web-1.") and len(name) == len("web-1.") + 16
    assert event == {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"namespace": "shop"},
        "eventTime": "2026-11-18T11:06:40.123456Z", "reportingController": "k8snet-trace", "reportingInstance": "node-a",
        "action": "TracePackets", "reason": "SynDropped", "type": "Warning",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-1", "uid": "11111111-2222"},
        "related": {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"},
        "note": "web \\x1b[31m drops\\nSYNs. Check: Look. Cure: Mend.",
    }  # fmt: skip
    assert sending.results == {"created": 1} and sending.step(WINDOW_SECONDS + 1) and sending.results == {"created": 1}


@pytest.mark.parametrize(
    "subject",
    [
        None,
        ObjectReference("Pod", "shop", "gone"),
        ObjectReference("Pod", "shop", "../../secrets"),
        ObjectReference("Pod", "shop?x=", "web-1"),
        ObjectReference("Pod", "", "web-1"),
        ObjectReference("Secret", "shop", "web-1"),
    ],
)
def test_without_a_known_object_the_event_is_about_the_node(sending: Sending, subject: ObjectReference | None) -> None:
    sending.take(finding(subject=subject))
    assert sending.step()
    (event,) = sending.events
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}
    assert event["metadata"]["namespace"] == "default" and "related" not in event
    asked = [path for path, _ in sending.server.requests]
    is_asked = subject == ObjectReference("Pod", "shop", "gone")
    assert asked == ["/api/v1/namespaces/shop/pods"] * is_asked, "no other name became a part of a URL"


def test_an_account_that_cannot_list_pods(sending: Sending) -> None:
    sending.server.refuse["Pod"] = 403
    sending.take(finding())
    assert sending.step() and sending.events[0]["regarding"]["kind"] == "Node"


def test_a_long_note_is_cut_between_characters(sending: Sending) -> None:
    sending.take(finding(cause="ü" * 1000), finding("mtu", cause="a" * 1010), finding("x", cause="\udcff" * 400))
    assert sending.step()
    notes = {event["reason"]: event["note"] for event in sending.events}
    assert notes["SynDropped"] == "ü" * 510 + "..." and notes["Mtu"] == "a" * 1010 + " Check: Look."
    assert notes["X"].startswith("\\xff") and len(notes["X"].encode()) == 1024


def test_further_packets_are_a_series(sending: Sending) -> None:
    """The second packet is reported at once, later ones every five minutes; a pause ends the series."""
    sending.take(finding())
    assert sending.step()
    sending.take(finding(), at=1)
    assert sending.step(1)
    (event,) = sending.events
    assert event["series"] == {"count": 2, "lastObservedTime": "2026-11-18T11:06:41.123456Z"}
    assert event["eventTime"] == "2026-11-18T11:06:40.123456Z"
    for second in range(2, 200):
        sending.take(finding(), count=10, at=second)
        sending.step(1)
    assert sending.results == {"created": 1, "updated": 1} and sending.events[0]["series"]["count"] == 2
    assert sending.step(UPDATE_SECONDS) and sending.events[0]["series"]["count"] == 2 + 198 * 10
    assert sending.results == {"created": 1, "updated": 2}
    assert sending.step(WINDOW_SECONDS + 1)
    sending.take(finding(), at=900)
    assert sending.step()
    first, second_event = sending.events
    assert second_event["eventTime"] == "2026-11-18T11:21:40.123456Z" and "series" not in second_event
    assert first["metadata"]["name"] != second_event["metadata"]["name"] and sending.results["created"] == 2


def test_many_packets_before_the_first_event(sending: Sending) -> None:
    sending.take(finding(), count=7, at=3)
    assert sending.step()
    assert sending.events[0]["series"] == {"count": 7, "lastObservedTime": "2026-11-18T11:06:43.123456Z"}


def test_similar_causes_are_one_event(sending: Sending) -> None:
    """As in client-go: ten Events, and one for all further ones."""
    for number in range(3 * SIMILAR):
        sending.take(finding("dropped_by_rule", number, None, f"Rule {number} drops."))
        sending.step(1)
    for _ in range(9):
        sending.step(60)
    notes = [event["note"] for event in sending.events]
    assert len(notes) == SIMILAR + 1 and notes[-1].startswith("(one of several similar findings) Rule 10 drops.")
    assert sending.events[-1]["series"]["count"] == 2 * SIMILAR
    assert sending.results == {"created": SIMILAR + 1}


def test_the_rate_for_one_object_is_limited(sending: Sending) -> None:
    """What waits too long for its turn is shed, and counted."""
    sending.take(*(finding(f"f{number}", subject=SERVICE) for number in range(100)))
    assert not sending.step() and len(sending.events) == AT_ONCE_FOR_ONE
    sending.take(finding())
    sending.step(60)
    assert len(sending.events) == AT_ONCE_FOR_ONE + 2, "one more of the Service, and the pod's"
    for _ in range(20):
        sending.step(60)
    created = sending.results["created"]
    assert created <= AT_ONCE_FOR_ONE + 1 + KEPT_SECONDS / 60 + 1 and sending.results["shed"] == 101 - created


def test_the_rate_of_a_node_is_limited(sending: Sending) -> None:
    for number in range(100):
        name = f"p{number}"
        sending.server.put({"kind": "Pod", "metadata": {"namespace": "shop", "name": name}, "spec": {}})
        sending.take(finding(subject=ObjectReference("Pod", "shop", name)))
    assert not sending.step() and len(sending.events) == AT_ONCE
    sending.step(20)
    assert len(sending.events) == AT_ONCE + 2


def test_the_number_of_series_is_bounded(sending: Sending) -> None:
    evicted = evictions.totals().get("series of Events", 0)
    sending.server.reported.always = WriteFault(503)
    sending.take(*(finding(f"f{number}", subject=SERVICE) for number in range(MOST_SERIES + 5)))
    assert sending.results == {"shed": 5} and evictions.totals()["series of Events"] == evicted + 5


def test_a_finding_of_which_no_event_can_be_made_is_counted(sending: Sending, monkeypatch: pytest.MonkeyPatch) -> None:
    sending.take(replace(finding(), cause=None), finding("mtu"))  # type: ignore[arg-type]
    assert sending.step() and sending.results == {"shed": 1, "created": 1}
    assert "the Event of the finding syn_dropped" in user_warnings.read()[-1]


def test_times_that_are_none(sending: Sending) -> None:
    for name, time in (("early", -5), ("late", 1 << 80)):
        sending.sender.take(WaitingFinding(finding(name), time, time), sending.now)
    assert sending.step()
    assert [event["eventTime"] for event in sending.events] == ["1970-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"]


def notes(sending: Sending) -> list[str]:
    return sending.sender.notes()


def test_an_account_without_the_right(sending: Sending) -> None:
    """Said once; tried again once a minute, and given up after ten."""
    sending.server.reported.always = WriteFault(
        403, 'events.events.k8s.io is forbidden: User "x" cannot create resource "events"'
    )
    sending.take(finding(), finding("mtu", subject=None))
    assert not sending.step()
    assert notes(sending) == [
        "The Kubernetes API does not let this account create events.events.k8s.io (403)."
        " deploy/rbac.yaml has the rule that allows it."
    ]
    for _ in range(12):
        sending.step(60)
    assert notes(sending) == [] and sending.results == {"refused": 2} and sending.step()


def test_a_right_that_is_granted_later(sending: Sending) -> None:
    sending.server.reported.faults.append(WriteFault(403))
    sending.take(finding())
    assert not sending.step() and not sending.step(1), "it waits a minute"
    assert sending.step(60) and sending.results == {"created": 1}


def test_a_right_to_create_but_not_to_patch(sending: Sending) -> None:
    sending.take(finding())
    sending.step()
    sending.server.reported.always = WriteFault(403)
    sending.take(finding())
    sending.step(1)
    assert "does not let this account patch events.events.k8s.io (403)" in notes(sending)[0]


def test_a_namespace_that_is_being_deleted(sending: Sending) -> None:
    text = "unable to create new content in namespace shop because it is being terminated"
    sending.server.reported.faults.append(WriteFault(403, text))
    sending.take(finding())
    assert sending.step() and notes(sending) == [] and sending.results == {"refused": 1}


def test_an_event_that_the_api_refuses(sending: Sending) -> None:
    sending.server.reported.faults += [WriteFault(422, "note: \x1b too long"), WriteFault(422, "note: too long")]
    sending.take(finding(), finding("mtu"))
    assert sending.step() and sending.results == {"refused": 2}
    assert notes(sending) == ["The Kubernetes API refused to create an Event (422): note: \x1b too long"]


@pytest.mark.parametrize("fault", [WriteFault(500), WriteFault(503), WriteFault(429), WriteFault(is_cut=True), WriteFault(401)])
def test_a_fault_is_said_once_and_tried_again(sending: Sending, fault: WriteFault) -> None:
    sending.server.reported.always = fault
    sending.take(finding(), finding("mtu"))
    written = []
    for _ in range(100):
        assert not sending.step(1)
        written.append(len(sending.server.posted))
    assert written[0] == 1 and 5 <= written[-1] <= 8, "1, 2, 4 ... seconds, and not each Event at once"
    (note,) = notes(sending)
    assert f"127.0.0.1:{sending.server.port} " in note and note.endswith("Events about findings wait, 10 minutes at most.")
    sending.server.reported.always = None
    sending.step(60)
    assert sending.step(60) and notes(sending) == ["The Kubernetes API takes Events again."]
    assert sending.results == {"created": 2}


def test_an_api_that_stays_away(sending: Sending) -> None:
    sending.server.die()
    sending.take(finding())
    for _ in range(11):
        sending.step(60)
    assert sending.step() and sending.results == {"shed": 1} and len(notes(sending)) == 1


@pytest.mark.parametrize(
    ("asked", "waits"), [("30", 30), ("9999999", 300), ("-5", 1), ("Fri, 27 Nov 2026 07:00:00 GMT", 1), ("٣", 1)]
)
def test_a_pause_that_the_api_asks_for(sending: Sending, asked: str, waits: int) -> None:
    headers = {"Retry-After": asked.encode().decode("latin-1")}
    sending.server.reported.faults.append(WriteFault(429, headers=headers))
    sending.take(finding())
    assert not sending.step() and not sending.step(waits - 0.5) and sending.step(0.5)


def test_an_answer_that_was_lost(sending: Sending) -> None:
    """The Event was made, and the connection ended: the next attempt finds it there (409)."""
    sending.server.reported.faults.append(WriteFault(is_cut_after=True))
    sending.take(finding())
    assert not sending.step() and sending.step(1)
    assert len(sending.events) == 1 and sending.results == {"created": 1}
    assert [method for method, _ in sending.server.reported.writes] == ["POST", "POST"]


def test_a_conflict_of_a_change(sending: Sending) -> None:
    sending.take(finding())
    sending.step()
    sending.server.reported.faults.append(WriteFault(409))
    sending.take(finding())
    assert not sending.step(1) and sending.step(1) and sending.results == {"created": 1, "updated": 1} and notes(sending) == []


def test_an_event_that_has_expired(sending: Sending) -> None:
    """The API keeps Events for an hour: the next packet makes a new one."""
    sending.take(finding())
    sending.step()
    sending.server.reported.events.clear()
    sending.take(finding(), at=1)
    assert not sending.step(1) and sending.step(1)
    (event,) = sending.events
    assert event["eventTime"] == "2026-11-18T11:06:41.123456Z" and "series" not in event
    assert sending.results == {"created": 2}


def test_a_token_that_has_expired(sending: Sending) -> None:
    sending.server.token = "new"
    sending.take(finding())
    assert not sending.step() and "does not know this account (401" in notes(sending)[0]
    sending.sender._access.token = "new"
    assert sending.step(1)


def test_the_end_counts_what_was_not_sent(sending: Sending) -> None:
    sending.take(finding(), finding("mtu"))
    sending.step()
    sending.take(finding(), finding("mtu"), finding("x"))
    assert sending.sender.give_up() == 3
    assert sending.results == {"created": 2, "shed": 3}


def test_findings_wait_within_a_bound() -> None:
    counts = EventCounts()
    waiting = WaitingFindings(counts)
    for number in range(MOST_WAITING + 3):
        waiting.add(finding(key=number), EPOCH_NS)
        waiting.add(finding(key=number), EPOCH_NS + number, is_new=False)
    assert counts.read()[EventResult.SHED] == 3
    found = waiting.read()
    assert len(found) == MOST_WAITING and waiting.read() == []
    assert [(each.count, each.first, each.last) for each in found[:2]] == [(2, EPOCH_NS, EPOCH_NS), (2, EPOCH_NS, EPOCH_NS + 1)]
