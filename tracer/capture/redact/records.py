# SPDX-License-Identifier: Apache-2.0
"""What reaches the file of a capture that is redacted while it is written: `-w FILE --redact`.

All that is written passes here (tracer/capture/record/writer.py), and each kind of it has its function; what has none is left
out. So nothing that nobody has thought of reaches the disk. Left out are conntrack's messages, notes, and what tells of
replaced rules; rulesets, whose rules are the kernel's own bytes, are not recorded at all (`--no-rules`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.capture.format.codec import plain, rich
from tracer.capture.format.schema import Record
from tracer.capture.record.buffer import Row
from tracer.capture.redact import events
from tracer.capture.redact.events import MAPPED
from tracer.capture.redact.pseudonyms import Pseudonymizer
from tracer.kube.cni_cache import Sandbox
from tracer.node.kube_proxy import KubeProxy
from tracer.node.procnet import BoundSocket

_NAMELESS = re.compile(r"node|netns \d+|")
"""What a namespace is called that has no name."""
NAMES = frozenset({
    "namespace", "name", "nodeName", "hostname", "kubernetes.io/hostname", "kubernetes.io/service-name", "node",
})  # fmt: skip
"""Keys of an object of Kubernetes that hold somebody's name."""
WORDS = frozenset({
    "kind", "type", "phase", "protocol", "appProtocol", "externalTrafficPolicy", "ipMode", "targetPort",
})  # fmt: skip
"""Keys that hold one of the API's own words."""
KEPT_META = frozenset({"program", "clock", "layout", "ring", "probes", "acts", "drop_reasons", "tracking"})
SAID = "(redacted)"


class RecordRedactor:
    """One recording, redacted. Its key is made anew, and is not written."""

    def __init__(self, key: bytes = b"") -> None:
        self._redaction = Pseudonymizer(key)
        self._packed: dict[bytes, bytes] = {}

    # ---- names and addresses

    def name(self, name: str) -> str:
        return self._redaction.name("name", name) if name else name

    def space(self, name: str) -> str:
        """A namespace's name."""
        return name if _NAMELESS.fullmatch(name) else self.name(name)

    def address(self, text: str) -> str:
        """An address, or a network, which stays one."""
        host, slash, length = text.partition("/")
        other = self._redaction(host)
        return str(ipaddress.ip_network(f"{other}/{length}", strict=False)) if slash else other

    def _address_or_name(self, text: str) -> str:
        try:
            ipaddress.ip_interface(text)
        except ValueError:
            return text if text in ("", "None") else self.name(text)
        return self.address(text)

    def _object_name(self, text: str) -> str:
        """NAMESPACE/NAME, with a port's name behind it."""
        place, colon, port = text.partition(":")
        return "/".join(map(self.name, place.split("/"))) + colon + port

    def packed(self, raw: bytes) -> bytes:
        """An address as events have it, 16 bytes."""
        found = self._packed.get(raw)
        if found is None:
            four = raw.startswith(MAPPED)
            text = str(ipaddress.ip_address(raw[12:] if four else raw))
            found = self._packed[raw] = (MAPPED if four else b"") + ipaddress.ip_address(self.address(text)).packed
        return found

    # ---- what never changes in a run

    def meta(self, told: dict[str, Any]) -> dict[str, Any]:
        """`meta` as tracer/capture/record/environment.py describes a run."""
        kept = {name: value for name, value in told.items() if name in KEPT_META}
        options, spaces = rich(told["options"]), told["namespaces"]
        words = {k: tuple(self._object_name(w) if isinstance(w, str) else w for w in v) for k, v in options["words"].items()}
        names = {inode: self.space(name) for inode, name in rich(spaces["names"]).items()}
        return kept | {
            "host": {**told["host"], "name": self.name(told["host"]["name"])},
            "options": plain({**options, "said": SAID, "words": words}),
            "facts": plain(self._redaction.deep(rich(told["facts"]))),
            "namespaces": {**spaces, "names": plain(names)},
            "addresses": sorted(map(self.address, told["addresses"])),
            "ipvs_addresses": sorted(map(self.address, told["ipvs_addresses"])),
        }

    def slots(self, slots: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Ring slots, as redact/events.py makes them."""
        return events.redacted(slots, self.packed)

    # ---- records

    def row(self, row: Row) -> Row | None:
        """A record as it may be written; None when it may not."""
        turn, kind, _, body = row
        take = _ROWS.get(kind)
        if take is None:
            return None
        found = take(self, body() if callable(body) else body)
        return None if found is None else (turn, kind, *found)

    def _answer(self, body: Any) -> tuple[str, Any] | None:
        question, count, answer = rich(body[0]), body[1], rich(body[2])
        take = _ANSWERS.get(question[0])
        found = take(self, question, answer) if take else None
        if found is None:
            return None
        question, answer = found
        return " ".join(map(str, question)), [plain(question), count, plain(answer)]

    def _process(self, question: Any, answer: Any) -> Any:
        return question, (answer[0], self.name(answer[1]))

    def _netns(self, question: Any, answer: Any) -> Any:
        return question, self.space(answer)

    def _spaces(self, question: Any, answer: Any) -> Any:
        return question, [self.space(name) for name in answer]

    def _space(self, question: Any, answer: Any) -> Any:
        of, name, what = question
        return (of, self.space(name), what), self._bound(answer) if what == "bound" else answer

    def _bound(self, found: Any) -> tuple[BoundSocket, ...]:
        return tuple(replace(b, address=self.address(b.address)) for b in found)

    def _node(self, question: Any, answer: Any) -> Any:
        key = question[1]
        what = key if isinstance(key, str) else key[0]
        if what == "bound":
            return question, self._bound(answer)
        if what == "kube-proxy":
            return question, answer and KubeProxy(answer.pid, tuple((self.name(n), SAID) for n, _ in answer.names))
        if what == "addresses":
            return question, {self.address(a): interface for a, interface in answer.items()}
        if what == "flannel":
            return question, tuple(map(self.address, answer))
        if what == "way out":
            return ("node", ("way out", self.address(key[1]))), answer
        return (question, answer) if what in ("is kube-proxy", "setting", "counters", "conntrack", "mtu") else None

    def _same(self, question: Any, answer: Any) -> Any:
        return question, answer

    def _objects(self, body: Any) -> tuple[str, Any]:
        what, kind, bodies = body
        if what == "named":
            return self.name(kind), [what, self.name(kind), []]
        found = [self._object(b) for b in bodies]
        key = kind
        if what in ("apply", "delete"):
            meta = found[0].get("metadata") or {}
            key = f"{kind} {meta.get('namespace', '')}/{meta.get('name', '')}"
        return key, [what, kind, found]

    def _object(self, value: Any, key: str = "", port: bool = False) -> Any:
        """A part of an object. key: what it is called. port: it is one of a list of ports, whose names are words."""
        if isinstance(value, dict):
            return {k: self._object(v, k, port or k == "ports") for k, v in value.items()}
        if isinstance(value, list):
            return [self._object(v, key, port) for v in value]
        if not isinstance(value, str) or key in WORDS or (port and key == "name"):
            return value
        return self.name(value) if key in NAMES else self._address_or_name(value)

    def _sandboxes(self, body: Any) -> tuple[str, Any]:
        return "", [body[0], plain([self._sandbox(s) for s in rich(body[1])])]

    def _sandbox(self, s: Sandbox) -> Sandbox:
        ports = tuple(replace(p, host=self.address(p.host) if p.host else "") for p in s.host_ports)
        addresses = tuple(map(self.address, s.addresses))
        return Sandbox(
            self.name(s.container), self.name(s.network), self.name(s.namespace), self.name(s.name), addresses, ports
        )

    def _loss(self, body: Any) -> tuple[str, Any]:
        return rich(body).probe, body

    def _gap(self, body: Any) -> tuple[str, Any]:
        count, why = body
        why = why if why == "the disk was too slow" else "it could not be written"
        return why, [count, why]

    def _filter(self, body: Any) -> tuple[str, Any]:
        since, ends, hosts, ports = body
        ends = [[self.address(address) if address else address, port, protocol] for address, port, protocol in ends]
        return "", [since, ends, [self.address(host) for host in hosts], ports]

    def _end(self, body: Any) -> tuple[str, Any]:
        return "", body


_ROWS: dict[str, Callable[[RecordRedactor, Any], tuple[str, Any] | None]] = {
    Record.ANSWER: RecordRedactor._answer,
    Record.OBJECTS: RecordRedactor._objects,
    Record.SANDBOXES: RecordRedactor._sandboxes,
    Record.LOSS: RecordRedactor._loss,
    Record.GAP: RecordRedactor._gap,
    Record.FILTER: RecordRedactor._filter,
    Record.LEFT: RecordRedactor._end,
    Record.END: RecordRedactor._end,
}
_ANSWERS: dict[str, Callable[[RecordRedactor, Any, Any], Any]] = {
    "process": RecordRedactor._process,
    "listener": RecordRedactor._process,
    "netns": RecordRedactor._netns,
    "space names": RecordRedactor._spaces,
    "space": RecordRedactor._space,
    "node": RecordRedactor._node,
    "function": RecordRedactor._same,
}
"""By the first word of the question (tracer/capture/journal.py)."""
