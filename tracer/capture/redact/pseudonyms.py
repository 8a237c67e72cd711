# SPDX-License-Identifier: Apache-2.0
"""Replaces addresses and names by pseudonyms, always the same for the same value, so that a capture can be shared.

Addresses keep their common prefixes: two addresses of one network are in one network afterwards. Addresses that identify no
host (loopback, unspecified, multicast, link-local) stay, as do ports, hooks, verdicts, and the names that kube-proxy and others
give their own chains. No table of pseudonyms is stored: each redaction has a new random key.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

from tracer.errors import OutputNotWritten
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.hop import QUEUE_ANSWER, DetailHop, SocketHop, owner_of
from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.util.octets import encoded

T = TypeVar("T")

_ADDRESS = re.compile(
    r"(?<![\w.:])(?:[0-9a-fA-F]{0,4}:){2,7}(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4})(?![\w:])"
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"
)
_ADDRESS_NAME = re.compile(r"\bip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}(?:\.[\w.-]*\w)?")
"""A node name made of its address."""
_OBJECT = re.compile(
    r"(?<![\w./-])(?P<ns>[a-z0-9][a-z0-9-]{0,62})/(?P<name>[a-z0-9][a-z0-9.-]{0,252}[a-z0-9]|[a-z0-9])(?![\w/])"
)
_HASHED = re.compile(r"(KUBE-(?:SVC|SEP|FW|XLB|SVL|EXT)-|CNI-(?:DN|SN)-|CNI-)([A-Za-z0-9]{8,})")
_LONG_ID = re.compile(r"\b[0-9a-f]{32,64}\b")
MAX_NAMES = 1 << 16
"""Most names that are looked for in texts. None may be forgotten: a later text would show it."""
KEPT_NAMES = frozenset({"node", "", "net", "proc", "sys", "ipv4", "ipv6", "core", "ip", "ip6", "inet"})


class Pseudonymizer:
    """Gives pseudonyms, with its own key. key: to redact several captures with the same pseudonyms.

    A pseudonym depends only on the key and the value, so it stays the same after it was evicted from a cache. A method that
    finds names raises OutputNotWritten when there are more than MAX_NAMES.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._key = key or os.urandom(32)
        self._names: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._address = lru_cache(1 << 16)(self._new_address)
        self._text = lru_cache(1 << 16)(self._new_text)

    def _number(self, *parts: str) -> int:
        return int.from_bytes(hmac.digest(self._key, encoded("\0".join(parts)), "sha256")[:8], "big")

    def name(self, kind: str, name: str) -> str:
        """The pseudonym of a name. kind: its prefix, "pod", "ns"."""
        return f"{kind}-{self._number('name', name) % 16**6:06x}" if name not in KEPT_NAMES else name

    def _new_address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local:
            return text
        # Each bit depends only on the bits before it, so common prefixes stay common.
        bits, value = address.max_prefixlen, int(address)
        keep = 8 if bits == 32 else 16
        out = value >> (bits - keep)
        for at in range(keep, bits):
            flip = self._number("bit", str(bits), str(at), str(value >> (bits - at))) & 1
            out = out << 1 | (value >> (bits - at - 1) & 1 ^ flip)
        return str(ipaddress.IPv4Address(out) if bits == 32 else ipaddress.IPv6Address(out))

    def _learn(self, name: str) -> None:
        if len(name) > 2 and name not in KEPT_NAMES and name not in self._names:
            if len(self._names) >= MAX_NAMES:
                raise OutputNotWritten(f"It has more than {MAX_NAMES} different names, too many to find each in all texts.")
            self._names.add(name)
            self._pattern = None
            self._text.cache_clear()

    def __call__(self, text: str) -> str:
        """A text with pseudonyms for addresses, for the names seen so far, and for names that look like an object's."""
        return self._text(text)

    def _new_text(self, text: str) -> str:
        # NS/NAME first: a part of it may match another pattern.
        text = _OBJECT.sub(self._object, text)
        if self._names:
            if self._pattern is None:
                words = sorted(map(re.escape, self._names), key=len, reverse=True)
                self._pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(words)})(?![\w]|[.-]\w)")
            text = self._pattern.sub(lambda m: self.name("name", m[0]), text)
        text = _ADDRESS_NAME.sub(lambda m: self.name("node", m[0]), text)
        text = _HASHED.sub(lambda m: m[1] + f"{self._number('chain', m[2]):016X}"[: len(m[2])], text)
        text = _LONG_ID.sub(lambda m: f"{self._number('id', m[0]):016x}", text)
        return _ADDRESS.sub(lambda m: self._address(m[0]), text)

    def _object(self, m: re.Match[str]) -> str:
        if m["ns"] in KEPT_NAMES or m["ns"].isdigit() or m["name"].isdigit():
            return m[0]
        self._learn(m["ns"])
        self._learn(m["name"])
        return f"{self.name('name', m['ns'])}/{self.name('name', m['name'])}"

    def packet(self, packet: Packet) -> Packet:
        """The packet with pseudonyms, and without its raw bytes."""
        self._learn_names(packet)
        return self.redact(replace(packet, raw=b""))

    def _learn_names(self, packet: Packet) -> None:
        for owner in (packet.src_owner, packet.dst_owner, *map(owner_of, packet.hops)):
            if isinstance(owner, Owner):
                self._learn(owner.namespace)
                self._learn(owner.name)
        for hop in packet.hops:
            self._learn(hop.netns)
            if isinstance(hop, SocketHop):
                self._learn(hop.socket.command)
            if isinstance(hop, DetailHop) and hop.detail.what == QUEUE_ANSWER:
                self._learn(str(hop.detail.facts.get("process", "")))

    def syn(self, verdict: HandshakeVerdict) -> HandshakeVerdict:
        """The verdict with pseudonyms, also in the packets of its attempt."""
        attempt = verdict.attempt
        if attempt:
            for packet in (attempt.syn, *attempt.synacks, *attempt.acks, *attempt.resets, *attempt.errors):
                self._learn_names(packet)
        return self.redact(verdict)

    def finding(self, finding: Finding) -> Finding:
        return self.redact(finding)

    def summary(self, summary: RunSummary) -> RunSummary:
        for difference in summary.differences:
            self._learn(difference.netns)
        differences = [self.redact(difference) for difference in summary.differences]
        return replace(summary, findings=[self.finding(f) for f in summary.findings], differences=differences)

    def redact(self, value: T) -> T:
        """A copy of a value with every text redacted. Rulesets are removed: the output shows only the rules of rule traces."""
        found: Any = value
        if isinstance(value, str) and not isinstance(value, Enum):
            found = self(value)
        elif isinstance(value, list):
            found = [self.redact(v) for v in value]
        elif isinstance(value, Mapping):
            found = {key: self.redact(v) for key, v in value.items()}
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            # A tuple, or the hops of a packet on a shared path, which are filled in when they are read.
            found = tuple(self.redact(v) for v in value)
        elif is_dataclass(value) and not isinstance(value, type):
            parts = {f.name: getattr(value, f.name) for f in fields(value)}
            changed = {k: None if k == "ruleset" else self.redact(v) for k, v in parts.items()}
            found = type(value)(**changed)
        return found  # type: ignore[no-any-return]
