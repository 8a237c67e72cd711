# SPDX-License-Identifier: Apache-2.0
"""Checks the types of all values in a capture before they are used.

A capture may come from an untrusted source, with correct check sums. A value that does not have the type described here is left
out and counted as damage. After these checks every value has its type.
"""

from __future__ import annotations

from typing import Any

from tracer.capture.format.codec import MalformedRecord, from_json
from tracer.capture.format.schema import Record
from tracer.capture.format.type_checks import fits, hashable
from tracer.kube.cni_cache import Sandbox
from tracer.model.bpf_program import ProgramPeriod
from tracer.model.check import CheckResult
from tracer.model.loss import Loss
from tracer.node.kube_proxy import KubeProxy
from tracer.node.procnet import BoundSocket, ConnectedSocket
from tracer.node.proxy_state import ProxyState
from tracer.util.questions import Question

_CHAIN = tuple[str, str, str]
_PLACES = list[tuple[int, int]]
_SNAPSHOT = {
    "netns": int,
    "number": int,
    "chains": list[tuple[_CHAIN, int, list[tuple[int, str, str, str, int]]]],
    "policies": list[tuple[_CHAIN, str]],
    "names": list[tuple[int, int, str]],
    "maps": list[Any],
    "lookups": list[tuple[int, int, int, int]],
}
_SNAPSHOT_OPTIONAL = {"taken": int, "tables": list[tuple[int, str]], "throwing": list[tuple[int, int, list[str]]]}
"""Keys that older captures do not have."""
_TABLE = {"blob": str, "hooks": _PLACES, "underflows": _PLACES, "text": str | None}
_REQUEST = tuple[int, Any, str]
_ENDS = list[tuple[str, int, str]]
_DIRECTION = tuple[str, _ENDS, list[str]]

RECORDS: dict[str, Any] = {
    Record.ANSWER: tuple[Any, int, Any],
    Record.OBJECTS: tuple[str, str, list[dict[str, Any]]],
    Record.SANDBOXES: tuple[int, Any],
    Record.READING: {"wanted": _REQUEST, "thread": int, "began": int, "ended": int, "why": str, "table": Any},
    Record.NFT: tuple[int, int, Any, Any],
    Record.GAP: tuple[int, str],
    Record.NOTE: str,
    Record.CHANGE: list[tuple[int, str]],
    Record.CONNTRACK: list[tuple[int, str]],
    Record.FILTER: (
        tuple[int, _ENDS, list[str], list[int]]
        | tuple[int, _ENDS, list[str], list[int], _DIRECTION]
        | tuple[int, _ENDS, list[str], list[int], _DIRECTION, _DIRECTION]
    ),
    Record.CLOCK: tuple[int, int],
    Record.LEFT: int,
    Record.END: tuple[float, int],
    Record.RULESET: {"bytes": str},
}
"""Types of each kind of record, as plain JSON. Values that the codec decodes have their types below."""

META: dict[str, Any] = {
    "program": str,
    "host": dict[str, str],
    "clock": {"offset": int, "zone": str, "began": int},
    "ring": int,
    "answers": str,
    "repeated": int,
    "parts": int,
    "probes": list[list[str]],
    "namespaces": {"node": int, "own": int, "names": Any, "named": list[int]},
    "tracking": list[int],
    "addresses": list[str],
    "ipvs_addresses": list[str],
}
DECODED_META: dict[str, Any] = {
    "options": dict[str, Any],
    "facts": dict[str, list[CheckResult]],
    "acts": frozenset[tuple[str, str, int, str]],
    "drop_reasons": dict[int, str],
}
"""Types of `meta`: as plain JSON, and after decoding by the codec. RecordLayout checks the layout."""

_SELECTORS = dict[str, tuple[str | int, ...]]
_OPTIONS = {
    "said": str, "count": int, "words": _SELECTORS | list[Any], "drops_only": bool, "no_rules": bool, "follow": bool,
    "conditions": dict[str, Any], "one_sided": bool,
}  # fmt: skip

_COUNTERS, _OWNER = dict[str, int], tuple[int, str]
HOOKS = range(5)
ANSWERS: dict[str, Any] = {
    "process": _OWNER,
    "listener": _OWNER,
    "netns": str,
    "function": str,
    "space names": list[str],
    "netlink port": str,
    "programs": tuple[ProgramPeriod, ...],
}
"""Types of answers by the first element of the question."""
NODE: dict[str, Any] = {
    "bound": tuple[BoundSocket, ...],
    "connected": tuple[ConnectedSocket, ...],
    "is kube-proxy": bool,
    "kube-proxy": KubeProxy | None,
    "proxy state": ProxyState | None,
    "setting": str,
    "counters": _COUNTERS,
    "addresses": dict[str, str],
    "conntrack": _COUNTERS,
    "mtu": int,
    "way out": str,
    "flannel": tuple[str, ...] | None,
    "node port addresses": tuple[str, ...] | None,
    "packet queues": tuple[int, ...] | None,
}
NAMESPACE: dict[str, Any] = {"counters": _COUNTERS, "bound": tuple[BoundSocket, ...]}
"""Types of answers to ("node", ...) and ("space", name, what). Every other `what` of a namespace is a setting."""


def record(kind: str, body: Any) -> Any:
    """Checks the body of a record and returns it. A body of an unknown kind is not checked. Raises MalformedRecord."""
    if not fits(body, RECORDS.get(kind, Any), is_json=True):
        raise MalformedRecord(f"a record of another form ({kind})")
    if kind == Record.READING:
        _require(body["wanted"][1] in ("ip", "ip6"), kind)
        table = body["table"]
        _require(table is None or fits(table, _TABLE, is_json=True), kind)
        _require(table is None or all(hook in HOOKS for name in ("hooks", "underflows") for hook, _ in table[name]), kind)
    elif kind == Record.NFT:
        snapshot = body[3]
        _require(type(body[2]) is bool and (not snapshot or fits(snapshot, _SNAPSHOT, is_json=True)), kind)
        _require(not snapshot or _have_types(snapshot, _SNAPSHOT_OPTIONAL, is_json=True), kind)
    return body


def _require(is_right: bool, kind: str) -> None:
    if not is_right:
        raise MalformedRecord(f"a record of another form ({kind})")


def _have_types(found: dict[str, Any], hints: dict[str, Any], is_json: bool = False) -> bool:
    """Whether each existing key has its type."""
    return all(fits(found[key], hint, is_json) for key, hint in hints.items() if key in found)


def meta(name: str, value: Any) -> Any:
    """Checks a value of `meta` and returns it. Raises MalformedRecord."""
    if not fits(value, META.get(name, Any), is_json=True):
        raise MalformedRecord(f"{name} in another form")
    if name in DECODED_META:
        found = from_json(value)
        _require(fits(found, DECODED_META[name]), name)
        if name == "options":
            _require(_have_types(found, _OPTIONS), name)
    elif name == "namespaces":
        _require(fits(from_json(value["names"]), dict[int, str]), name)
    return value


def answer(body: Any) -> tuple[Question, int, Any]:
    """The question, the number of this request in its batch, and the answer. Raises MalformedRecord."""
    question, found = from_json(body[0]), from_json(body[2])
    if type(question) is not tuple or not question or not hashable(question):
        raise MalformedRecord("no question")
    hint = _answer_type(question)
    if not fits(found, hint):
        raise MalformedRecord(f"an answer of another type ({question[0]})")
    return question, body[1], found


def _answer_type(question: Question) -> Any:
    about = question[0]
    if about == "node" and len(question) > 1:
        key = question[1]
        return NODE.get(key[0] if isinstance(key, tuple) and key else key, Any)  # type: ignore[arg-type]
    if about == "space" and len(question) > 2:
        return NAMESPACE.get(str(question[2]), str)
    if about == "conntrack events" and len(question) > 1:
        return int if question[1] == "lost" else str
    return ANSWERS.get(str(about), Any)


def sandboxes(body: Any) -> tuple[int, list[Sandbox]]:
    """The number of lookups before the reading, and the sandboxes that were read. Raises MalformedRecord."""
    found = from_json(body[1])
    if not fits(found, list[Sandbox]):
        raise MalformedRecord("no sandboxes")
    return body[0], found


def loss(body: Any) -> Loss:
    """The decoded loss. Raises MalformedRecord."""
    found = from_json(body)
    if not isinstance(found, Loss):
        raise MalformedRecord("no loss")
    return found
