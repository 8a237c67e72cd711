# SPDX-License-Identifier: Apache-2.0
"""The JSON of an Event. Source: the API reference of events.k8s.io/v1, and pkg/apis/core/validation/events.go of Kubernetes."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Any

from tracer.model.finding import Finding
from tracer.model.kube import ObjectReference
from tracer.util.escape import escaped

GROUP = "events.k8s.io"
NOTE_BYTES = 1024
"""Longest note that the API accepts, bytes of UTF-8."""
FIELD_BYTES = 128
"""Longest reason, action and reporting instance that the API accepts, bytes."""
CONTROLLER = "k8snet-trace"
ACTION = "TracePackets"
CUT = "..."
LATEST_NS = 253_402_300_799_999_999_999
"""The end of the year 9999, ns since the epoch."""
NODES_NAMESPACE = "default"
"""The namespace of Events about a Node, which has none itself. The API refuses all but this one and kube-system."""

_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_UID = re.compile(r"[-.\w]{1,128}", re.ASCII)
_PLURALS = {"Service": "services", "Pod": "pods", "Node": "nodes"}


def is_valid(reference: ObjectReference) -> bool:
    """Whether an object can have this name, so that it can be a part of a URL. Names in rules are made by others."""
    is_named = bool(_SUBDOMAIN.fullmatch(reference.name)) and reference.kind in _PLURALS
    return is_named and (reference.kind == "Node" or bool(_LABEL.fullmatch(reference.namespace)))


def collection_path(reference: ObjectReference) -> str:
    """The path of the collection in which the object is. The reference must be valid."""
    where = f"namespaces/{reference.namespace}/" if reference.namespace else ""
    return f"/api/v1/{where}{_PLURALS[reference.kind]}"


def events_path(reference: ObjectReference) -> str:
    """The path of the collection of the Events about an object."""
    return f"/apis/{GROUP}/v1/namespaces/{reference.namespace or NODES_NAMESPACE}/events"


def regarding(reference: ObjectReference, uid: object = "") -> dict[str, str]:
    """The reference as the API has it. uid: that of the object, as the API sent it; for a Node kubelet uses its name."""
    made = {"apiVersion": "v1", "kind": reference.kind, "name": reference.name}
    if reference.namespace:
        made["namespace"] = reference.namespace
    if isinstance(uid, str) and _UID.fullmatch(uid):
        made["uid"] = uid
    return made


def event_name(finding: Finding, about: ObjectReference, node: str, time_ns: int) -> str:
    """The name of a new Event: the same one for each attempt to create it, another one on each node and at each time."""
    identity = repr((node, finding.name, finding.key, about, time_ns)).encode(errors="backslashreplace")
    name = about.name if _SUBDOMAIN.fullmatch(about.name) else about.kind.lower()
    return f"{name[:230].rstrip('-.')}.{hashlib.sha256(identity).hexdigest()[:16]}"


def event_body(
    finding: Finding, about: dict[str, str], name: str, node: str, first_ns: int, is_combined: bool = False
) -> dict[str, Any]:
    """A new Event without a series.

    Args:
        finding: What it reports.
        about: The object, as `regarding` makes it.
        name: Name of the Event.
        node: Name of this node.
        first_ns: Time of the finding, ns since the epoch.
        is_combined: It stands for several causes with the same name, of which this is one.
    """
    this_node = regarding(ObjectReference("Node", "", node), node)
    body: dict[str, Any] = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": about.get("namespace") or NODES_NAMESPACE},
        "eventTime": micro_time(first_ns),
        "reportingController": CONTROLLER,
        "reportingInstance": bounded(node, FIELD_BYTES),
        "action": ACTION,
        "reason": bounded(reason(finding.name), FIELD_BYTES),
        "regarding": about,
        "note": note(finding, is_combined),
        "type": "Warning",
    }
    return body if about["kind"] == "Node" else body | {"related": this_node}


def series(count: int, last_ns: int) -> dict[str, Any]:
    """The series of an Event. count: number of packets, at least 2. last_ns: time of the last one, ns since the epoch."""
    return {"series": {"count": min(count, (1 << 31) - 1), "lastObservedTime": micro_time(last_ns)}}


def reason(name: str) -> str:
    """The name of a finding in CamelCase."""
    return "".join(part.capitalize() for part in re.split(r"[^0-9A-Za-z]+", name)) or "Finding"


def note(finding: Finding, is_combined: bool = False) -> str:
    """The cause; how to check and to cure it, where there is room."""
    text = ("(one of several similar findings) " if is_combined else "") + finding.cause
    for word, more in (("Check", finding.check), ("Cure", finding.cure)):
        longer = f"{text} {word}: {more}"
        if more and len(escaped(longer).encode(errors="backslashreplace")) <= NOTE_BYTES:
            text = longer
    return bounded(text, NOTE_BYTES)


def bounded(text: str, most: int) -> str:
    """The text without control characters, cut to a number of bytes."""
    encoded = escaped(text).encode(errors="backslashreplace")
    if len(encoded) > most:
        encoded = encoded[: most - len(CUT)]
        return encoded.decode(errors="ignore") + CUT
    return encoded.decode()


def micro_time(ns: int) -> str:
    """A MicroTime of the API: 2026-11-27T06:05:04.123456Z. Times outside of 1970 to 9999 become the nearest one."""
    ns = min(max(ns, 0), LATEST_NS)
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ns // 1000 % 1_000_000:06}Z"
