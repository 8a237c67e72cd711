# SPDX-License-Identifier: Apache-2.0
"""Redacts the records of a capture while it is written: `-w FILE --redact`.

Everything that is written passes this module (tracer/capture/record/writer.py). Each kind of record has a function; a kind
without one is left out, so an unknown kind never reaches the disk. Left out are conntrack's messages, notes, and replacements
of rules. Rulesets contain the kernel's raw bytes and are not recorded at all (`--no-rules`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tracer.capture.format.codec import from_json, to_json
from tracer.capture.format.schema import Record
from tracer.capture.record.buffer import Row
from tracer.capture.redact import events
from tracer.capture.redact.events import MAPPED
from tracer.capture.redact.pseudonyms import Pseudonymizer
from tracer.events.record import Slots
from tracer.kube.cni_cache import Sandbox
from tracer.kube.pod_selectors import KINDS
from tracer.kube.selected_ends import DIRECTED
from tracer.node.kube_proxy import KubeProxy
from tracer.node.procnet import BoundSocket
from tracer.util.lru_dict import LruDict

_NAMELESS = re.compile(r"node|netns \d+|")
"""Names of namespaces that have no name of their own."""
NAME_KEYS = frozenset({
    "namespace", "name", "nodeName", "hostname", "kubernetes.io/hostname", "kubernetes.io/service-name", "node",
})  # fmt: skip
"""Keys of a Kubernetes object with names that users have chosen."""
API_WORD_KEYS = frozenset({
    "kind", "type", "phase", "protocol", "appProtocol", "externalTrafficPolicy", "ipMode", "targetPort",
})  # fmt: skip
"""Keys with fixed words of the API."""
KEPT_META = frozenset({"program", "clock", "layout", "ring", "probes", "acts", "drop_reasons", "tracking"})
UNREDACTED_WORDS = frozenset({"workloads", "labels"})
"""Selectors that are left out: a redacted capture has no labels. Its replay shows all packets that were recorded."""
_KEPT_ANSWERS = frozenset({"is kube-proxy", "setting", "counters", "conntrack", "mtu", "packet queues", "proxy state"})
"""Answers about the node without a name or an address."""
REDACTED = "(redacted)"
UNREDACTED_KINDS = frozenset({"NetworkPolicy", "Namespace"})
"""Objects that are left out: they consist of labels, and a redacted capture has neither labels nor rules."""
ADDRESSES_KEPT = 1 << 16
"""Most pseudonyms of addresses kept. That of another address is computed again, and is the same."""


class RecordRedactor:
    """Redacts one recording. Its key is random unless given, and is not stored."""

    def __init__(self, key: bytes = b"") -> None:
        self._pseudonymizer = Pseudonymizer(key)
        self._packed: LruDict[bytes, bytes] = LruDict(ADDRESSES_KEPT, "pseudonyms of addresses")

    # ---- names and addresses

    def name(self, name: str) -> str:
        return self._pseudonymizer.name("name", name) if name else name

    def namespace(self, name: str) -> str:
        """The pseudonym of a namespace's name."""
        return name if _NAMELESS.fullmatch(name) else self.name(name)

    def address(self, text: str) -> str:
        """The pseudonym of an address, or of a network, which stays a network."""
        host, slash, length = text.partition("/")
        other = self._pseudonymizer(host)
        return str(ipaddress.ip_network(f"{other}/{length}", strict=False)) if slash else other

    def _address_or_name(self, text: str) -> str:
        try:
            ipaddress.ip_interface(text)
        except ValueError:
            return text if text in ("", "None") else self.name(text)
        return self.address(text)

    def _object_name(self, text: str) -> str:
        """The pseudonym of NAMESPACE/NAME or NAMESPACE/NAME:PORT."""
        place, colon, port = text.partition(":")
        return "/".join(map(self.name, place.split("/"))) + colon + port

    def packed_address(self, raw: bytes) -> bytes:
        """The pseudonym of an address of an event, 16 bytes."""
        found = self._packed.get(raw)
        if found is None:
            is_ipv4 = raw.startswith(MAPPED)
            text = str(ipaddress.ip_address(raw[12:] if is_ipv4 else raw))
            found = self._packed[raw] = (MAPPED if is_ipv4 else b"") + ipaddress.ip_address(self.address(text)).packed
        return found

    # ---- the values that do not change in a run

    def meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Redacts `meta`, in the form of tracer/capture/record/environment.py."""
        kept = {name: value for name, value in meta.items() if name in KEPT_META}
        options, namespaces = from_json(meta["options"]), meta["namespaces"]
        selectors = {
            name: tuple(self._object_name(value) if isinstance(value, str) else value for value in values)
            for name, values in options["words"].items()
            if name not in UNREDACTED_WORDS | DIRECTED.keys()
        }
        for name in DIRECTED:
            words = [value.partition("/") for value in options["words"].get(name, ())]
            if not any(kind in KINDS for kind, _, _ in words):
                selectors[name] = tuple(f"{kind}/{self._object_name(rest)}" for kind, _, rest in words)
        names = {inode: self.namespace(name) for inode, name in from_json(namespaces["names"]).items()}
        return kept | {
            "host": {**meta["host"], **{name: self.name(meta["host"][name]) for name in ("name", "boot")}},
            "options": to_json({**options, "said": REDACTED, "words": selectors, "conditions": {}}),
            "facts": to_json(self._pseudonymizer.redact(from_json(meta["facts"]))),
            "namespaces": {**namespaces, "names": to_json(names)},
            "addresses": sorted(map(self.address, meta["addresses"])),
            "ipvs_addresses": sorted(map(self.address, meta["ipvs_addresses"])),
        }

    def slots(self, slots: Slots) -> Slots:
        """Redacts ring slots (redact/events.py)."""
        return events.redact_slots(slots, self.packed_address)

    # ---- records

    def row(self, row: Row) -> Row | None:
        """The redacted record; None when it must not be written."""
        batch_number, kind, _, body = row
        take = _ROWS.get(kind)
        if take is None:
            return None
        found = take(self, body() if callable(body) else body)
        return None if found is None else (batch_number, kind, *found)

    def _answer(self, body: Any) -> tuple[str, Any] | None:
        question, count, answer = from_json(body[0]), body[1], from_json(body[2])
        take = _ANSWERS.get(question[0])
        found = take(self, question, answer) if take else None
        if found is None:
            return None
        question, answer = found
        return " ".join(map(str, question)), [to_json(question), count, to_json(answer)]

    def _process(self, question: Any, answer: Any) -> Any:
        return question, (answer[0], self.name(answer[1]))

    def _netns(self, question: Any, answer: Any) -> Any:
        return question, self.namespace(answer)

    def _namespace_names(self, question: Any, answer: Any) -> Any:
        return question, [self.namespace(name) for name in answer]

    def _namespace(self, question: Any, answer: Any) -> Any:
        of, name, what = question
        return (of, self.namespace(name), what), self._bound(answer) if what == "bound" else answer

    def _bound(self, found: Any) -> tuple[BoundSocket, ...]:
        return tuple(replace(b, address=self.address(b.address)) for b in found)

    def _node(self, question: Any, answer: Any) -> Any:
        key = question[1]
        what = key if isinstance(key, str) else key[0]
        if what == "bound":
            return question, self._bound(answer)
        if what == "connected":
            return question, tuple(replace(s, address=self.address(s.address), peer=self.address(s.peer)) for s in answer)
        if what == "kube-proxy":
            return question, answer and KubeProxy(answer.pid, tuple((self.name(n), REDACTED) for n, _ in answer.names))
        if what == "addresses":
            return question, {self.address(a): interface for a, interface in answer.items()}
        if what in ("flannel", "node port addresses"):
            return question, answer and tuple(map(self.address, answer))
        if what == "way out":
            return ("node", ("way out", self.address(key[1]))), answer
        return (question, answer) if what in _KEPT_ANSWERS else None

    def _programs(self, question: Any, answer: Any) -> Any:
        """Paths and processes may have the names of pods."""
        periods = [
            replace(p, programs=tuple(replace(each, pin="", holder="", cgroup="") for each in p.programs)) for p in answer
        ]
        return question, tuple(periods)

    def _unchanged(self, question: Any, answer: Any) -> Any:
        return question, answer

    def _objects(self, body: Any) -> tuple[str, Any] | None:
        what, kind, bodies = body
        if kind in UNREDACTED_KINDS and what != "named":
            return None
        bodies = [b for b in bodies if b.get("kind") not in UNREDACTED_KINDS]
        if what == "named":
            return self.name(kind), [what, self.name(kind), []]
        found = [self._object(b) for b in bodies]
        key = kind
        if what in ("apply", "delete"):
            meta = found[0].get("metadata") or {}
            key = f"{kind} {meta.get('namespace', '')}/{meta.get('name', '')}"
        return key, [what, kind, found]

    def _object(self, value: Any, key: str = "", is_port: bool = False) -> Any:
        """Redacts a part of an object. key: its key. is_port: it belongs to a list of ports; their names stay."""
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if key != "labels" or k in NAME_KEYS}
            return {k: self._object(v, k, is_port or k == "ports") for k, v in kept.items()}
        if isinstance(value, list):
            return [self._object(v, key, is_port) for v in value]
        if not isinstance(value, str) or key in API_WORD_KEYS or (is_port and key == "name"):
            return value
        return self.name(value) if key in NAME_KEYS else self._address_or_name(value)

    def _sandboxes(self, body: Any) -> tuple[str, Any]:
        return "", [body[0], to_json([self._sandbox(s) for s in from_json(body[1])])]

    def _sandbox(self, s: Sandbox) -> Sandbox:
        ports = tuple(replace(p, host=self.address(p.host) if p.host else "") for p in s.host_ports)
        addresses = tuple(map(self.address, s.addresses))
        return Sandbox(
            self.name(s.container), self.name(s.network), self.name(s.namespace), self.name(s.name), addresses, ports
        )

    def _loss(self, body: Any) -> tuple[str, Any]:
        return from_json(body).probe, body

    def _gap(self, body: Any) -> tuple[str, Any]:
        count, why = body
        why = why if why == "the disk was too slow" else "it could not be written"
        return why, [count, why]

    def _filter(self, body: Any) -> tuple[str, Any]:
        since, ends, hosts, ports, *directions = body
        redacted = [[name, self._ends(wanted), [self.address(host) for host in of]] for name, wanted, of in directions]
        return "", [since, self._ends(ends), [self.address(host) for host in hosts], ports, *redacted]

    def _ends(self, ends: list[Any]) -> list[list[Any]]:
        return [[self.address(address) if address else address, port, protocol] for address, port, protocol in ends]

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
    "space names": RecordRedactor._namespace_names,
    "space": RecordRedactor._namespace,
    "node": RecordRedactor._node,
    "function": RecordRedactor._unchanged,
    "programs": RecordRedactor._programs,
}
"""By the first element of the question (tracer/capture/journal.py)."""
