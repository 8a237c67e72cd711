# SPDX-License-Identifier: Apache-2.0
"""The names of objects that `--src` and `--dst` take beside addresses: pod/NS/NAME, svc/NS/NAME:PORT, deploy/NS/NAME, ns/NS."""

from __future__ import annotations

import re

from tracer.errors import BadOption
from tracer.kube.pod_selectors import KINDS

FORMS = "pod/NS/NAME, svc/NS/NAME, svc/NS/NAME:PORT, ns/NS, or deploy/NS/NAME; also sts, ds, rs and job"
_FIELDS = {"pod": "pods", "po": "pods", "svc": "services", "service": "services", "ns": "namespaces", "namespace": "namespaces"}
"""The field of Selectors for each kind, by kubectl's names; any other kind is that of a workload."""
_NAME = re.compile(r"(?P<kind>[a-z]+)/(?:(?P<ns>[a-z0-9-]+)/)?(?P<name>[a-z0-9.-]+)(?P<port>:[a-z0-9-]+)?")


def is_name(text: str) -> bool:
    """Whether a value of --src or --dst is a name, and no address or network."""
    return re.match(r"[a-zA-Z]+/", text) is not None


def is_without_namespace(text: str) -> bool:
    """Whether a name lacks its namespace: pod/NAME."""
    kind, _, rest = text.partition("/")
    return "/" not in rest and _FIELDS.get(kind) != "namespaces"


def completed(text: str, namespace: str) -> str:
    """The name with this namespace: pod/NAME becomes pod/NS/NAME."""
    kind, _, rest = text.partition("/")
    return f"{kind}/{namespace}/{rest}"


def selector_of(option: str, text: str) -> tuple[str, str]:
    """The field of Selectors that selects the same objects, and its value. Raises BadOption."""
    found = _NAME.fullmatch(text)
    kind = found["kind"] if found else ""
    field = _FIELDS.get(kind, "workloads" if kind in KINDS else "")
    is_namespace = field == "namespaces"
    if not found or not field or (found["port"] and field != "services") or (is_namespace and found["ns"]):
        raise BadOption(f"{option} {text!r} is no name: write {FORMS}.")
    if is_namespace:
        return field, found["name"]
    namespace = found["ns"] or "default"
    path = f"{kind}/{found['name']}" if field == "workloads" else found["name"]
    return field, f"{namespace}/{path}{found['port'] or ''}"
