# SPDX-License-Identifier: Apache-2.0
"""Makes iptables tables as the kernel returns them: the blob of ipt_entry or ip6t_entry structures."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, field

from tracer.model.netfilter import IP_HOOKS
from tracer.rules.iptables.blob import BlobTable

VERDICTS = {"DROP": -1, "ACCEPT": -2, "QUEUE": -4, "RETURN": -5}
HEAD = {"ip": 112, "ip6": 168}


@dataclass(frozen=True)
class R:
    """A rule. target: a verdict, "" for none, a chain (goto=True: without return) or the name of a target with `data`.

    matches: (name, revision, data). src, dst: networks. inverted: IPT_INV_* bits.
    """

    target: str = ""
    matches: tuple[tuple[str, int, bytes], ...] = ()
    src: str = ""
    dst: str = ""
    in_face: str = ""
    out_face: str = ""
    protocol: int = 0
    inverted: int = 0
    fragment: bool = False
    goto: bool = False
    data: bytes = b""
    revision: int = 0


@dataclass
class Blob:
    """A table as getsockopt returns it."""

    family: str
    name: str
    data: bytes = b""
    hooks: dict[int, int] = field(default_factory=dict)
    underflows: dict[int, int] = field(default_factory=dict)

    def table(self) -> BlobTable:
        return BlobTable(self.family, self.name, self.data, self.hooks, self.underflows)


def build(chains: dict[str, list[R]], family: str = "ip", name: str = "filter", policies: dict[str, str] | None = None) -> Blob:
    """A table with its base chains first, as in the kernel. Base chains are named as hooks; their default policy is ACCEPT."""
    out, starts, rules = Blob(family, name), {}, []
    at = 0
    order = [c for c in IP_HOOKS if c in chains] + [c for c in chains if c not in IP_HOOKS]
    for chain in order:
        if chain not in IP_HOOKS:
            rules.append((at, R("ERROR", data=chain.encode().ljust(32, b"\0"))))
            at += _size(family, rules[-1][1])
        starts[chain] = at
        last = R((policies or {}).get(chain, "ACCEPT") if chain in IP_HOOKS else "RETURN")
        for rule in [*chains[chain], last]:
            if chain in IP_HOOKS and rule is last:
                out.underflows[IP_HOOKS.index(chain)] = at
            rules.append((at, rule))
            at += _size(family, rule)
        if chain in IP_HOOKS:
            out.hooks[IP_HOOKS.index(chain)] = starts[chain]
    rules.append((at, R("ERROR", data=b"ERROR".ljust(32, b"\0"))))
    out.data = b"".join(_entry(family, at, rule, starts) for at, rule in rules)
    return out


def _padded(data: bytes) -> bytes:
    return data.ljust((len(data) + 7) & ~7, b"\0")


def _ext(name: str, revision: int, data: bytes) -> bytes:
    data = _padded(data)
    return struct.pack("<H29sB", 32 + len(data), name.encode(), revision) + data


def _target(rule: R, at: int, size: int, starts: dict[str, int]) -> bytes:
    if rule.data or rule.target in ("DNAT", "LOG"):
        return _ext(rule.target, rule.revision, rule.data)
    verdict = VERDICTS.get(rule.target, starts.get(rule.target, 0)) if rule.target else at + size
    return _ext("", 0, struct.pack("<i", verdict))


def _matches(rule: R) -> bytes:
    return b"".join(_ext(*m) for m in rule.matches)


def _size(family: str, rule: R) -> int:
    return HEAD[family] + len(_matches(rule)) + len(_target(rule, 0, 0, {}))


def _entry(family: str, at: int, rule: R, starts: dict[str, int]) -> bytes:
    size = _size(family, rule)
    offsets = struct.pack("<HHI", HEAD[family] + len(_matches(rule)), size, 0)
    v6 = family == "ip6"
    addresses, masks = b"", b""
    for text in (rule.src, rule.dst):
        network = ipaddress.ip_network(text or ("::/0" if v6 else "0.0.0.0/0"))
        addresses, masks = addresses + network.network_address.packed, masks + network.netmask.packed
    faces = [n.rstrip("+").encode().ljust(16, b"\0") for n in (rule.in_face, rule.out_face)]
    covers = [_mask(n) for n in (rule.in_face, rule.out_face)]
    head = addresses + masks + b"".join(faces + covers)
    if v6:
        flags = bool(rule.protocol) | rule.goto << 2
        head += struct.pack("<HBBB3xI", rule.protocol, 0, flags, rule.inverted, 0) + offsets + bytes(4)
    else:
        head += struct.pack("<HBBI", rule.protocol, rule.fragment | rule.goto << 1, rule.inverted, 0) + offsets
    return head.ljust(HEAD[family], b"\0") + _matches(rule) + _target(rule, at, size, starts)


def _mask(name: str) -> bytes:
    length = len(name) - 1 if name.endswith("+") else len(name) + 1 if name else 0
    return (b"\xff" * length).ljust(16, b"\0")
