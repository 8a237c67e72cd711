# SPDX-License-Identifier: Apache-2.0
"""What may stand in a capture, and of which type: the one place where it is looked at, before anything of it is used.

A capture may come from anybody, and its check sums be right. Whatever is not as it is described here is left out and counted,
as damage is; behind this border everything has its type.
"""

from __future__ import annotations

from typing import Any

from tracer.capture.format.codec import MalformedRecord, rich
from tracer.capture.format.schema import Record
from tracer.capture.format.type_checks import fits, hashable
from tracer.kube.cni_cache import Sandbox
from tracer.model.check import CheckResult
from tracer.model.loss import Loss
from tracer.node.kube_proxy import KubeProxy
from tracer.node.procnet import BoundSocket
from tracer.util.asking import Question

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
_SNAPSHOT_LATER = {"taken": int, "tables": list[tuple[int, str]], "throwing": list[tuple[int, int, list[str]]]}
"""What captures from before do not have."""
_TABLE = {"blob": str, "hooks": _PLACES, "underflows": _PLACES, "text": str | None}
_WANTED = tuple[int, Any, str]

RECORDS: dict[str, Any] = {
    Record.ANSWER: tuple[Any, int, Any],
    Record.OBJECTS: tuple[str, str, list[dict[str, Any]]],
    Record.SANDBOXES: tuple[int, Any],
    Record.READING: {"wanted": _WANTED, "thread": int, "began": int, "ended": int, "why": str, "table": Any},
    Record.NFT: tuple[int, int, Any, Any],
    Record.GAP: tuple[int, str],
    Record.NOTE: str,
    Record.CHANGE: list[tuple[int, str]],
    Record.CONNTRACK: list[tuple[int, str]],
    Record.FILTER: tuple[int, list[tuple[str, int, str]], list[str], list[int]],
    Record.LEFT: int,
    Record.END: tuple[float, int],
    Record.RULESET: {"bytes": str},
}
"""Plain JSON of each kind of record. What is no plain JSON has its types below."""

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
RICH: dict[str, Any] = {
    "options": dict[str, Any],
    "facts": dict[str, list[CheckResult]],
    "acts": frozenset[tuple[str, str, int, str]],
    "drop_reasons": dict[int, str],
}
"""Of `meta`: as plain JSON, and as the values that the codec makes of it. The layout looks at itself."""

_WORDS = dict[str, tuple[str | int, ...]]
_OPTIONS = {"said": str, "count": int, "words": _WORDS | list[Any], "drops_only": bool, "no_rules": bool, "follow": bool}

_COUNTERS, _OWNER = dict[str, int], tuple[int, str]
HOOKS = range(5)
ANSWERS: dict[str, Any] = {
    "process": _OWNER,
    "listener": _OWNER,
    "netns": str,
    "function": str,
    "space names": list[str],
    "netlink port": str,
}
"""By what a question begins with."""
NODE: dict[str, Any] = {
    "bound": tuple[BoundSocket, ...],
    "is kube-proxy": bool,
    "kube-proxy": KubeProxy | None,
    "setting": str,
    "counters": _COUNTERS,
    "addresses": dict[str, str],
    "conntrack": _COUNTERS,
    "mtu": int,
    "way out": str,
    "flannel": tuple[str, ...],
}
SPACE: dict[str, Any] = {"counters": _COUNTERS, "bound": tuple[BoundSocket, ...]}
"""Of ("node", ...) and ("space", name, what); other words of a space are its settings."""


def record(kind: str, body: Any) -> Any:
    """The body of a record. Raises MalformedRecord for one that is not as it should be. Of an unknown kind nothing is looked
    at."""
    if not fits(body, RECORDS.get(kind, Any), listed=True):
        raise MalformedRecord(f"a record of another form ({kind})")
    if kind == Record.READING:
        _need(body["wanted"][1] in ("ip", "ip6"), kind)
        table = body["table"]
        _need(table is None or fits(table, _TABLE, listed=True), kind)
        _need(table is None or all(hook in HOOKS for name in ("hooks", "underflows") for hook, _ in table[name]), kind)
    elif kind == Record.NFT:
        snapshot = body[3]
        _need(type(body[2]) is bool and (not snapshot or fits(snapshot, _SNAPSHOT, listed=True)), kind)
        _need(not snapshot or _present(snapshot, _SNAPSHOT_LATER, listed=True), kind)
    return body


def _need(right: bool, kind: str) -> None:
    if not right:
        raise MalformedRecord(f"a record of another form ({kind})")


def _present(found: dict[str, Any], hints: dict[str, Any], listed: bool = False) -> bool:
    """Whether each of these keys that is there has its type."""
    return all(fits(found[key], hint, listed) for key, hint in hints.items() if key in found)


def meta(name: str, value: Any) -> Any:
    """A piece of `meta`. Raises MalformedRecord."""
    if not fits(value, META.get(name, Any), listed=True):
        raise MalformedRecord(f"what it says of its {name}")
    if name in RICH:
        found = rich(value)
        _need(fits(found, RICH[name]), name)
        if name == "options":
            _need(_present(found, _OPTIONS), name)
    elif name == "namespaces":
        _need(fits(rich(value["names"]), dict[int, str]), name)
    return value


def answer(body: Any) -> tuple[Question, int, Any]:
    """The question of an answer, which asking of its turn it was, and the answer. Raises MalformedRecord."""
    question, found = rich(body[0]), rich(body[2])
    if type(question) is not tuple or not question or not hashable(question):
        raise MalformedRecord("no question")
    hint = _hint(question)
    if not fits(found, hint):
        raise MalformedRecord(f"an answer of another type ({question[0]})")
    return question, body[1], found


def _hint(question: Question) -> Any:
    about = question[0]
    if about == "node" and len(question) > 1:
        key = question[1]
        return NODE.get(key[0] if isinstance(key, tuple) and key else key, Any)  # type: ignore[arg-type]
    if about == "space" and len(question) > 2:
        return SPACE.get(str(question[2]), str)
    if about == "conntrack events" and len(question) > 1:
        return int if question[1] == "lost" else str
    return ANSWERS.get(str(about), Any)


def sandboxes(body: Any) -> tuple[int, list[Sandbox]]:
    """How many questions had been asked, and what was read. Raises MalformedRecord."""
    found = rich(body[1])
    if not fits(found, list[Sandbox]):
        raise MalformedRecord("no sandboxes")
    return body[0], found


def loss(body: Any) -> Loss:
    """Raises MalformedRecord."""
    found = rich(body)
    if not isinstance(found, Loss):
        raise MalformedRecord("no loss")
    return found
