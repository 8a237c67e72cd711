# SPDX-License-Identifier: Apache-2.0
"""Pods by namespace, by workload and by label: `--namespace`, `--workload` and `-l`, in kubectl's notation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tracer.errors import BadOption
from tracer.kube.store import ObjectStore
from tracer.model.kube import Pod

KINDS = {
    "deploy": "Deployment", "deployment": "Deployment", "sts": "StatefulSet", "statefulset": "StatefulSet",
    "ds": "DaemonSet", "daemonset": "DaemonSet", "rs": "ReplicaSet", "replicaset": "ReplicaSet", "job": "Job",
}  # fmt: skip
"""Kinds of workloads by kubectl's names for them."""
TEMPLATE_HASH = "pod-template-hash"
"""The label of a Deployment's ReplicaSets and pods. A ReplicaSet's name is that of its Deployment with this hash."""

_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_WORKLOAD = re.compile(r"(?:(?P<ns>[a-z0-9-]+)/)?(?P<kind>[a-z]+)/(?P<name>[a-z0-9.-]+)")
_TERM = re.compile(r"(?P<not>!?)(?P<key>[\w./-]+)(?:(?P<operator>==|=|!=)(?P<value>[\w.-]*))?", re.ASCII)

Test = Callable[[dict[str, str]], bool]


def check_words(namespaces: tuple[str, ...], workloads: tuple[str, ...], labels: tuple[str, ...]) -> None:
    """Raises BadOption for a word in another form."""
    for word in namespaces:
        if not _NAMESPACE.fullmatch(word):
            raise BadOption(f"--namespace {word!r} is no name of a namespace.")
    for word in workloads:
        parse_workload(word)
    for word in labels:
        parse_labels(word)


def parse_workload(word: str) -> tuple[str, str, str]:
    """Returns namespace ("" = none is given), kind and name. Raises BadOption."""
    found = _WORKLOAD.fullmatch(word)
    kind = KINDS.get(found["kind"]) if found else None
    if not found or not kind:
        raise BadOption(f"--workload {word!r} is no workload: write deploy/NAME or NS/deploy/NAME; also sts, ds, rs and job.")
    return found["ns"] or "", kind, found["name"]


def parse_labels(word: str) -> list[Test]:
    """Returns a test for each term of a label selector: key=value, key!=value, key, !key. Raises BadOption."""
    return [_test(term.strip(), word) for term in word.split(",")]


def _test(term: str, word: str) -> Test:
    found = _TERM.fullmatch(term)
    if not found or (found["not"] and found["operator"]):
        raise BadOption(f"-l {word!r} is no label selector: write app=web, app!=web, app or !app, with commas between them.")
    key, value = found["key"], found["value"]
    if found["operator"] is None:
        return (lambda labels: key not in labels) if found["not"] else (lambda labels: key in labels)
    if found["operator"] == "!=":
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value


def pods_of_workload(word: str, store: ObjectStore) -> Iterator[Pod]:
    """Yields the pods of a workload, as far as the store has its pods."""
    namespace, kind, name = parse_workload(word)
    for pod in store.pods.values():
        if pod.namespace == (namespace or "default") and (kind, name) in workloads(pod):
            yield pod


def pods_of_labels(word: str, namespaces: tuple[str, ...], store: ObjectStore) -> Iterator[Pod]:
    """Yields the pods that a label selector selects, in these namespaces, () = in all of them."""
    tests = parse_labels(word)
    for pod in store.pods.values():
        if not namespaces or pod.namespace in namespaces:
            labels = dict(pod.labels)
            if all(test(labels) for test in tests):
                yield pod


def workloads(pod: Pod) -> Iterator[tuple[str, str]]:
    """Yields kind and name of the objects that a pod belongs to: its controller, and the Deployment above a ReplicaSet."""
    template = dict(pod.labels).get(TEMPLATE_HASH, "")
    for kind, name in pod.controllers:
        yield kind, name
        if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
            yield "Deployment", name.removesuffix(f"-{template}")
