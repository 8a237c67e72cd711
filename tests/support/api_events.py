# SPDX-License-Identifier: Apache-2.0
"""Events that clients write to the API server, accepted and refused as a real one does.

The schema is that of the API (kubernetes-validate, strict). The further rules are those of pkg/apis/core/validation/events.go
of Kubernetes for a new Event of events.k8s.io/v1, and for a change: all but the series stays as it is.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.support.api_objects import Object

PATH = re.compile(r"/apis/events\.k8s\.io/v1/namespaces/([^/]+)/events(?:/([^/]+))?")
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@dataclass
class WriteFault:
    """What goes wrong with one write of an Event.

    Attributes:
        status: Status of the answer; 0 = the write is accepted.
        message: Text of the answer.
        headers: More headers of the answer.
        seconds: Time before the answer, s, or until `released` is set.
        is_cut: The connection ends without an answer, and nothing is written.
        is_cut_after: The connection ends without an answer, and the Event is written.
    """

    status: int = 0
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    is_cut: bool = False
    is_cut_after: bool = False


class ReportedEvents:
    """The Events by (namespace, name).

    Attributes:
        validates: Events are checked and kept. If not, the server accepts everything, as it does for other programs' Events.
        faults: Faults of the next writes, in their order.
        always: The fault of all writes after these; None = none.
        events: The Events.
        refused: Why Events were refused.
        writes: Method and path of each write.
        released: Ends the waiting of slow answers.
    """

    def __init__(self) -> None:
        self.validates = False
        self.faults: deque[WriteFault] = deque()
        self.always: WriteFault | None = None
        self.events: dict[tuple[str, str], Object] = {}
        self.refused: list[str] = []
        self.writes: list[tuple[str, str]] = []
        self.released = threading.Event()

    def is_asked(self, path: str) -> bool:
        return self.validates and bool(PATH.fullmatch(path))

    def next_fault(self) -> WriteFault | None:
        return self.faults.popleft() if self.faults else self.always

    def write(self, method: str, path: str, content_type: str, content: bytes) -> tuple[int, Object]:
        """Status and body of the answer to a write."""
        found = PATH.fullmatch(path)
        assert found
        namespace, name = found[1], found[2] or ""
        self.writes.append((method, path))
        body = json.loads(content)
        if method == "POST":
            return self._create(namespace, content_type, body)
        event = self.events.get((namespace, name))
        if content_type != "application/merge-patch+json":
            return 415, {"message": "the media type is not supported", "code": 415}
        if event is None:
            return 404, {"message": f'events.events.k8s.io "{name}" not found', "code": 404}
        changed = merged(event, body)
        wrong = [*problems(changed, namespace)]
        wrong += [f"{key}: field is immutable" for key in {*event, *changed} - {"series"} if event.get(key) != changed.get(key)]
        if wrong:
            return self._refuse(wrong)
        self.events[namespace, name] = changed
        return 200, changed

    def _create(self, namespace: str, content_type: str, body: Object) -> tuple[int, Object]:
        wrong = [*problems(body, namespace)] + ["a wrong media type"] * (content_type != "application/json")
        if wrong:
            return self._refuse(wrong)
        key = namespace, body["metadata"]["name"]
        if key in self.events:
            return 409, {"message": f'events.events.k8s.io "{key[1]}" already exists', "code": 409}
        self.events[key] = deepcopy(body)
        return 201, body

    def _refuse(self, wrong: list[str]) -> tuple[int, Object]:
        self.refused += wrong
        return 422, {"message": "; ".join(wrong), "code": 422}


def merged(base: Object, change: Object) -> Object:
    """A JSON merge patch (RFC 7386) of an object."""
    made: dict[str, Any] = deepcopy(base)
    for key, value in change.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, dict):
            made[key] = merged(made[key] if isinstance(made.get(key), dict) else {}, value)
        else:
            made[key] = value
    return made


def problems(body: Object, namespace: str) -> Iterator[str]:
    """What the API server finds wrong in an Event."""
    try:
        import kubernetes_validate
    except ImportError:
        pass
    else:
        for version in ("1.30", "1.37"):
            try:
                kubernetes_validate.validate(body, version, strict=True)
            except kubernetes_validate.ValidationError as e:
                yield f"{version}: {e.message}"
    for name, most in (("reason", 128), ("action", 128), ("reportingInstance", 128), ("note", 1024)):
        length = len(str(body.get(name) or "").encode())
        if not 0 < length <= most:
            yield f"{name}: {length} bytes"
    about = body.get("regarding") or {}
    if (about.get("namespace") or "default") != namespace or body["metadata"].get("namespace") != namespace:
        yield "regarding.namespace: does not match event.namespace"
    if not re.fullmatch(r"[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?", body.get("reportingController") or ""):
        yield "reportingController: no qualified name"
    if body.get("type") not in ("Normal", "Warning"):
        yield "type: has invalid value"
    if not MICRO_TIME.fullmatch(body.get("eventTime") or ""):
        yield "eventTime: must be specified"
    if not re.fullmatch(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?", body["metadata"].get("name") or ""):
        yield "metadata.name: no DNS subdomain"
    series = body.get("series")
    if series is not None and (series.get("count", 0) < 2 or not MICRO_TIME.fullmatch(series.get("lastObservedTime") or "")):
        yield "series: a count of at least 2, and a time, are needed"
