# SPDX-License-Identifier: Apache-2.0
"""Makes Events of findings and keeps them up to date in the API: the work of one thread, step by step.

As in client-go's recorder (tools/events/event_broadcaster.go): an Event is created at the first packet; later packets of the
same cause and object are a series of it, of which the API learns the number and the time of the last one; a pause ends the
series, and the next packet makes another Event. Similar causes beyond SIMILAR are one Event (tools/record/events_cache.go).
"""

from __future__ import annotations

import http.client
from collections.abc import Hashable

from tracer.kube.api_client import ApiClient, ApiResource, RequestRefused
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube_events.event_body import (
    GROUP,
    collection_path,
    event_body,
    event_name,
    events_path,
    is_valid,
    regarding,
    series,
)
from tracer.kube_events.event_counts import EventCounts, EventResult
from tracer.kube_events.event_series import EventSeries
from tracer.kube_events.waiting_findings import WaitingFinding
from tracer.model.kube import ObjectReference
from tracer.util.bounded_queue import BoundedQueue
from tracer.util.lru_dict import LruDict
from tracer.util.token_bucket import TokenBucket
from tracer.util.worker import user_warnings

WINDOW_SECONDS = 360.0
"""A pause of this length ends a series, s, as in client-go."""
UPDATE_SECONDS = 300.0
"""Shortest time between two changes of one Event, s. The second packet is reported at once."""
KEPT_SECONDS = 600.0
"""Time after which what could not be sent is given up, s."""
SIMILAR = 10
"""Causes of one name and one object that have an Event each; further ones are one Event together."""
MOST_SERIES = 512
"""Largest number of series."""
AT_ONCE, PER_SECOND = 50.0, 0.1
"""Requests of this node for Events: at once, and per second for longer times."""
AT_ONCE_FOR_ONE, PER_SECOND_FOR_ONE = 10.0, 1 / 60
"""The same for one object."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts, doubled each time."""
LONGEST_REQUESTED_PAUSE = 300
"""Longest pause that the API can ask for, s."""
MOST_NOTES = 16
TERMINATED = "being terminated"
"""In the text of a 403 that is no lack of rights: the namespace is being deleted (NamespaceLifecycle)."""
RIGHT = "deploy/rbac.yaml has the rule that allows it."


class EventSender:
    """Sends what the API does not know.

    Args:
        client: The client; `interrupt` ends the sender's waiting.
        access: Its access, for messages, and to read the token again.
        node: Name of this node.
        counts: What became of the Events.
        now: A monotonic time, s; all later times are of the same clock.

    Attributes:
        is_ending: The run ends.
    """

    def __init__(self, client: ApiClient, access: ApiAccess, node: str, counts: EventCounts, now: float) -> None:
        self._client, self._access, self._node, self._counts = client, access, node, counts
        self._series: LruDict[Hashable, EventSeries] = LruDict(MOST_SERIES, "series of Events", self._evicted)
        self._bucket = TokenBucket(AT_ONCE, PER_SECOND, now)
        self._buckets: LruDict[ObjectReference, TokenBucket] = LruDict(MOST_SERIES, "rates of Events")
        self._notes: BoundedQueue[str] = BoundedQueue(MOST_NOTES, "notes about Events")
        self._said: set[tuple[str, int]] = set()
        self._pause, self._not_before = 0.0, 0.0
        self._is_away = self.is_ending = False

    def notes(self) -> list[str]:
        """The notes for the user since the last call."""
        return self._notes.read()

    def end(self) -> None:
        """The run ends: pauses are over, and all that is known is sent."""
        self.is_ending = True
        self._not_before = self._pause = 0.0
        for each in self._series.values():
            each.not_before = 0.0

    def give_up(self) -> int:
        """Counts what was not sent, and forgets all series. Returns the number of Events that are missing or not up to date."""
        series = list(self._series.values())
        self._series.clear()
        for each in series:
            self._evicted(None, each)
        return sum(each.has_news for each in series)

    def take(self, waiting: WaitingFinding, now: float) -> None:
        """Adds a finding to its series, or begins one. now: a monotonic time, s."""
        finding = waiting.finding
        subject = finding.subject
        about = subject if subject and is_valid(subject) else ObjectReference("Node", "", self._node)
        key: Hashable = (finding.name, about, finding.key)
        found = self._current(key, now)
        is_combined = not found and self._similar(finding.name, about) >= SIMILAR
        if is_combined:
            key = finding.name, about
            found = self._current(key, now)
        if found:
            found.add(waiting.count, waiting.last, now)
            return
        made = EventSeries(finding, about, waiting.first, waiting.last, waiting.count, now, is_combined, waits_since=now)
        self._series[key] = made

    def _current(self, key: Hashable, now: float) -> EventSeries | None:
        """The series that goes on; None = there is none, or a pause has ended it."""
        found = self._series.get(key)
        if found and now - found.seen_at > WINDOW_SECONDS:
            self._evicted(None, self._series.pop(key))
            return None
        return found

    def _similar(self, name: str, about: ObjectReference) -> int:
        """Number of series with this name and object that are not combined."""
        return sum(not each.is_combined and each.finding.name == name and each.about == about for each in self._series.values())

    def _evicted(self, key: Hashable, series: EventSeries) -> None:
        if series.has_news:
            self._counts.add(EventResult.REFUSED if series.is_refused else EventResult.SHED)

    def step(self, now: float) -> bool:
        """Sends what is due, the oldest first, until the API does not take it; gives up what is too old.

        Args:
            now: A monotonic time, s.

        Returns:
            Whether the API knows all.
        """
        for key, each in sorted(self._series.items(), key=lambda item: item[1].waits_since):
            if not each.has_news:
                if now - each.seen_at > WINDOW_SECONDS:
                    del self._series[key]
            elif now - each.waits_since > KEPT_SECONDS:
                self._evicted(None, self._series.pop(key))
            elif now < max(self._not_before, each.not_before) or not self._has_token(each.about, now):
                continue
            elif not self._send(each, now):
                del self._series[key]
        return not any(each.has_news for each in self._series.values())

    def _has_token(self, about: ObjectReference, now: float) -> bool:
        own = self._buckets.get(about)
        if own is None:
            own = self._buckets[about] = TokenBucket(AT_ONCE_FOR_ONE, PER_SECOND_FOR_ONE, now)
        return own.has_one(now) and self._bucket.take(now) and own.take(now)

    def _send(self, series: EventSeries, now: float) -> bool:
        """Sends one series. Returns whether it is kept: False = it can never be sent."""
        verb = "patch" if series.sent else "create"
        try:
            result = self._update(series) if series.sent else self._create(series)
        except RequestRefused as e:
            return self._refused(series, verb, e, now)
        except (OSError, http.client.HTTPException, ValueError) as e:
            why = (e.strerror if isinstance(e, OSError) and e.strerror else str(e)) or type(e).__name__
            self._wait(f"does not answer ({why})", now)
            return True
        except Exception as e:
            user_warnings.add_failure(f"the Event of the finding {series.finding.name}", e)
            self._counts.add(EventResult.SHED)
            return False
        self._counts.add(result)
        # The second packet is reported at once: from then on the API shows that it happens again.
        series.not_before = now + UPDATE_SECONDS if result is EventResult.UPDATED or series.count > 1 else now
        series.is_refused, self._pause = False, 0.0
        if self._is_away:
            self._is_away = False
            self._notes.append("The Kubernetes API takes Events again.")
        return True

    def _create(self, each: EventSeries) -> EventResult:
        """Creates the Event. One that exists is this one: an earlier answer was lost."""
        each.regarding = each.regarding or self._looked_up(each.about)
        each.name = each.name or event_name(each.finding, each.about, self._node, each.first)
        count, last = each.count, each.last
        body = event_body(each.finding, each.regarding, each.name, self._node, each.first, each.is_combined)
        try:
            self._client.create(self._collection(each), body | (series(count, last) if count > 1 else {}))
        except RequestRefused as e:
            if e.status != 409:
                raise
            count = 1
        each.sent = count
        return EventResult.CREATED

    def _update(self, each: EventSeries) -> EventResult:
        """Changes the number and the last time of the Event."""
        count = each.count
        self._client.patch(f"{self._collection(each)}/{each.name}", series(count, each.last))
        each.sent = count
        return EventResult.UPDATED

    @staticmethod
    def _collection(each: EventSeries) -> str:
        return events_path(ObjectReference(each.regarding["kind"], each.regarding.get("namespace", ""), each.regarding["name"]))

    def _looked_up(self, about: ObjectReference) -> dict[str, str]:
        """The object with its uid, by which `kubectl describe` finds its Events; the node if the API does not have it.

        The name comes from a rule or from an address: an Event about an object that is not there would be a wrong statement.
        """
        node = regarding(ObjectReference("Node", "", self._node), self._node)
        if about.kind == "Node":
            return node
        try:
            found, _ = self._client.list(ApiResource(about.kind, collection_path(about), f"metadata.name={about.name}"))
        except RequestRefused as e:
            if e.status not in (403, 404):
                raise
            return node
        metas = [each.get("metadata") for each in found if isinstance(each, dict)]
        named = [meta for meta in metas if isinstance(meta, dict) and meta.get("name") == about.name]
        return regarding(about, named[0].get("uid")) if named else node

    def _refused(self, each: EventSeries, verb: str, e: RequestRefused, now: float) -> bool:
        """Handles a refusal. Returns whether the series is kept."""
        if e.status == 404 and verb == "patch":
            # Events have a time to live, an hour by default: this one begins anew.
            each.count, each.first = each.count - each.sent, each.last
            each.sent, each.name, each.regarding = 0, "", {}
            return True
        if e.status == 401:
            self._access.renew()
            self._wait("does not know this account (401: expired token?)", now)
        elif e.status == 409:
            each.not_before = now + FIRST_PAUSE
        elif e.status in (408, 429) or e.status >= 500:
            self._wait(f"answered {e.status}", now, e.retry_after)
        elif e.status == 403 and TERMINATED not in str(e):
            each.is_refused, each.not_before = True, now + LONGEST_PAUSE
            self._say(verb, 403, f"The Kubernetes API does not let this account {verb} events.{GROUP} (403). {RIGHT}")
        else:
            self._counts.add(EventResult.REFUSED)
            if e.status != 403:
                self._say(verb, e.status, f"The Kubernetes API refused to {verb} an Event ({e.status}): {str(e)[:300]}")
            return False
        return True

    def _wait(self, what: str, now: float, requested: int = 0) -> None:
        """Nothing is sent for some time."""
        self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
        self._not_before = now + max(self._pause, min(requested, LONGEST_REQUESTED_PAUSE))
        if not self._is_away:
            self._is_away = True
            where = f"{self._access.host}:{self._access.port}"
            minutes = f"{KEPT_SECONDS / 60:.0f} minutes"
            self._notes.append(f"The Kubernetes API at {where} {what}: Events about findings wait, {minutes} at most.")

    def _say(self, verb: str, status: int, sentence: str) -> None:
        """Notes a refusal, once for each verb and status."""
        if (verb, status) not in self._said:
            self._said.add((verb, status))
            self._notes.append(sentence)
