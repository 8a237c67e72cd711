"""A table as the kernel would have it, from what iptables-save printed: so that one engine serves rules that were read as text.

What the engine computes is laid out as in the kernel (tracer/rules/matches.py), by its name and revision; of any other match or
target the words are kept, with the revision WORDS. Offsets are those of no real blob: they only tell rules apart.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network

from tracer.rules.entry import Entry, Ext, Header
from tracer.rules.model import Rule, Ruleset
from tracer.rules.table import HOOKS, VERDICTS, Table

WORDS = -1
"""The revision of a match or target that is kept as its user wrote it."""
STEP = 8
_VERDICTS = {name: number for number, name in VERDICTS.items()}
_PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "esp": 50, "ah": 51, "icmpv6": 58, "ipv6-icmp": 58, "sctp": 132, "udplite": 136,
              "dccp": 33, "all": 0}  # fmt: skip
_FLAGS = {"FIN": 1, "SYN": 2, "RST": 4, "PSH": 8, "ACK": 16, "URG": 32, "ALL": 63, "NONE": 0}
_FREE = frozenset({"--comment", "--log-prefix", "--nflog-prefix"})
"""Options whose value may look like anything."""
_FACES = {"-i": 1, "-o": 2}
_SRC, _DST, _FRAGMENT, _PROTOCOL = 8, 16, 32, 64


class NotUnderstood(Exception):
    """A rule has a word in it that this program does not know the meaning of."""


Option = tuple[str, bool, list[str]]
"""Name, whether negated, values."""


@dataclass
class _Parsed:
    """A rule taken apart. head: -s, -d and so on. matches, target: a name and its options. goto: by -g."""

    head: list[Option] = field(default_factory=list)
    matches: list[tuple[str, list[Option]]] = field(default_factory=list)
    target: tuple[str, list[Option]] = ("", [])
    goto: bool = False


class AssembledTable(Table):
    """A table whose rules are all at hand. entries: by offset; lists: offsets of a chain's rules."""

    def __init__(self, family: str, name: str, lists: dict[str, list[int]], starts: dict[int, str]) -> None:
        self.family, self.name, self.starts = family, name, starts
        self.entries: dict[int, Entry] = {}
        self.lists = lists
        self.hooks: dict[int, int] = {}
        self.underflows: dict[int, int] = {}

    @property
    def chains(self) -> Iterable[str]:
        return self.lists.keys()

    def offsets(self, chain: str) -> list[int]:
        return self.lists[chain]

    def entry(self, at: int) -> Entry:
        return self.entries[at]

    def target_name(self, at: int) -> str:
        e = self.entries[at]
        return e.target.name if e.verdict is None else self.named(e.verdict, e.next)


def assemble(ruleset: Ruleset, family: str, name: str) -> tuple[Table, dict[int, Rule]]:
    """The table, and its rules by their offset. Raises NotUnderstood, with the rule that is not."""
    chains = {c: rules for (f, t, c), rules in ruleset.chains.items() if (f, t) == (family, name)}
    order = [c for c in HOOKS if c in chains] + [c for c in chains if c not in HOOKS]
    starts, at = {}, 0
    for chain in order:
        starts[chain] = at
        at += STEP * (len(chains[chain]) + 1)
    table = AssembledTable(family, name, {c: [] for c in order}, {starts[c]: c for c in order})
    rules: dict[int, Rule] = {}
    for chain in order:
        at = starts[chain]
        for rule in chains[chain]:
            entry = _entry(rule, at, starts)
            table.entries[at], rules[at] = entry, rule
            table.lists[chain].append(at)
            at += STEP
        policy = ruleset.policies.get((family, name, chain), "ACCEPT") if chain in HOOKS else "RETURN"
        table.entries[at] = Entry(at, at + STEP, EVERYTHING, (), _standard(at, _VERDICTS[policy]), False, chain, 0)
        if chain in HOOKS:
            table.hooks[HOOKS.index(chain)], table.underflows[HOOKS.index(chain)] = starts[chain], at
    return table, rules


EVERYTHING = Header(0, 0, 0, 0, 0, 0, 0, 0, 0, True, False, 0)


def _standard(at: int, verdict: int) -> Ext:
    return Ext("", 0, at, struct.pack("<i", verdict))


def _entry(rule: Rule, at: int, starts: dict[str, int]) -> Entry:
    try:
        parsed = _parse(split(rule.text))
        header = _header(parsed.head, rule.family)
        matches = tuple(_match(name, options, at) for name, options in parsed.matches)
        target, options = parsed.target
        if not target:
            ext = _standard(at, at + STEP)
        elif target in starts or target in _VERDICTS:
            ext = _standard(at, starts.get(target, _VERDICTS.get(target, 0)))
        else:
            ext = _target(target, options, at)
    except (ValueError, IndexError, KeyError) as e:
        raise NotUnderstood(f"{rule.chain} {rule.number}: {rule.text} ({e})") from e
    return Entry(at, at + STEP, header, matches, ext, parsed.goto, rule.chain, rule.number)


_WORD = re.compile(r'"((?:\\.|[^"\\])*)"(?!\S)|(\S+)')
_ESCAPE = re.compile(r"\\(.)")


def split(text: str) -> list[str]:
    """The words of a rule as iptables-save quotes them. Raises ValueError for a quote that does not end."""
    found = []
    for quoted, bare in _WORD.findall(text):
        if bare.startswith('"'):
            raise ValueError("a quote that does not end")
        found.append(bare or _ESCAPE.sub(r"\1", quoted))
    return found


def _parse(words: Sequence[str]) -> _Parsed:
    out, negated = _Parsed(), False
    options = out.head
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "!":
            negated = True
        elif word in ("-m", "-j", "-g"):
            name, options = words[at], []
            at += 1
            if word == "-m":
                out.matches.append((name, options))
            else:
                out.target, out.goto = (name, options), word == "-g"
        elif word in _FREE:
            options.append((word, negated, [words[at]]))
            at += 1
        elif word.startswith("-"):
            options.append((word, negated, []))
            negated = False
        else:
            options[-1][2].append(word)
    return out


def _header(options: list[Option], family: str) -> Header:
    net, faces, inverted = {"-s": (0, 0), "-d": (0, 0)}, {"-i": (0, 0), "-o": (0, 0)}, 0
    protocol, fragment = 0, False
    for name, negated, values in options:
        if name in net:
            network = ip_network(values[0], strict=False)
            net[name] = int(network.network_address), int(network.netmask)
            inverted |= negated * (_SRC if name == "-s" else _DST)
        elif name in faces:
            faces[name] = _face(values[0])
            inverted |= negated * _FACES[name]
        elif name == "-p":
            protocol = _PROTOCOLS.get(values[0].lower(), int(values[0]) if values[0].isdigit() else -1)
            if protocol < 0:
                raise ValueError(f"protocol {values[0]}")
            inverted |= negated * _PROTOCOL
        elif name == "-f":
            fragment = True
            inverted |= negated * _FRAGMENT
        else:
            raise ValueError(name)
    return Header(*net["-s"], *net["-d"], *faces["-i"], *faces["-o"], protocol, not protocol, fragment, inverted)


def _face(name: str) -> tuple[int, int]:
    """An interface name and its mask; "cni+" asks for how it begins."""
    length = len(name) - 1 if name.endswith("+") else len(name) + 1
    raw = name.rstrip("+").encode().ljust(16, b"\0")
    return int.from_bytes(raw, "big"), int.from_bytes((b"\xff" * length).ljust(16, b"\0"), "big")


def _match(name: str, options: list[Option], at: int) -> Ext:
    made = _MATCHES.get(name)
    if made:
        revision, pack = made
        data = pack(options)
        if data is not None:
            return Ext(name, revision, at, data)
    return Ext(name, WORDS, at, words(options).encode())


def words(options: Sequence[Option]) -> str:
    """Options as iptables-save writes them."""
    return " ".join(" ".join(["!"] * negated + [name, *values]) for name, negated, values in options)


def options_of(ext: Ext) -> list[Option]:
    """The options of a match or target that is kept in words."""
    return _parse(split(ext.data.decode())).head


def _ports(value: str) -> tuple[int, int]:
    low, colon, high = value.partition(":")
    return int(low or 0), int(high or 65535) if colon else int(low)


def _of_ports(options: list[Option], rest: Callable[[list[Option]], bytes | None]) -> bytes | None:
    """Source and destination ports, then what `rest` makes of other options, then the inverted bits."""
    src, dst, inverted, others = (0, 65535), (0, 65535), 0, []
    for option in options:
        name, negated, values = option
        if name == "--sport":
            src, inverted = _ports(values[0]), inverted | negated
        elif name == "--dport":
            dst, inverted = _ports(values[0]), inverted | negated << 1
        else:
            others.append(option)
            inverted |= negated << 2
    middle = rest(others)
    return None if middle is None else struct.pack("<HHHH", *src, *dst) + middle + bytes([inverted])


def _tcp(options: list[Option]) -> bytes | None:
    def rest(others: list[Option]) -> bytes | None:
        mask = flags = 0
        for name, _, values in others:
            if name != "--tcp-flags":
                return None
            mask, flags = (sum(_FLAGS[f] for f in value.split(",")) for value in values)
        return bytes([0, mask, flags])

    return _of_ports(options, rest)


def _udp(options: list[Option]) -> bytes | None:
    return _of_ports(options, lambda others: None if others else b"")


def _multiport(options: list[Option]) -> bytes | None:
    ((name, negated, values),) = options
    which = {"--sports": 0, "--dports": 1, "--ports": 2}.get(name)
    if which is None:
        return None
    ports, ranges = [], []
    for word in values[0].split(","):
        low, colon, high = word.partition(":")
        ports += [int(low), int(high)] if colon else [int(low)]
        ranges += [1, 0] if colon else [0]
    numbers = struct.pack("<15H", *ports, *[0] * (15 - len(ports)))
    return bytes([which, len(ports)]) + numbers + bytes(ranges).ljust(15, b"\0") + bytes([negated])


def _mark(options: list[Option]) -> bytes | None:
    ((_, negated, values),) = options
    return struct.pack("<IIB", *_masked(values[0]), negated)


def _masked(value: str) -> tuple[int, int]:
    number, slash, mask = value.partition("/")
    return int(number, 0), int(mask, 0) if slash else 0xFFFFFFFF


def _icmp(options: list[Option]) -> bytes | None:
    ((_, negated, values),) = options
    kind, slash, code = values[0].partition("/")
    if kind == "any":
        return bytes([0xFF, 0, 0xFF, negated])
    if not kind.isdigit():
        return None
    return bytes([int(kind), int(code) if slash else 0, int(code) if slash else 0xFF, negated])


def _comment(options: list[Option]) -> bytes:
    return " ".join(options[0][2]).encode() + b"\0"


_MATCHES: dict[str, tuple[int, Callable[[list[Option]], bytes | None]]] = {
    "comment": (0, _comment), "mark": (1, _mark), "tcp": (0, _tcp), "udp": (0, _udp), "multiport": (1, _multiport),
    "icmp": (0, _icmp), "icmp6": (0, _icmp),
}  # fmt: skip
"""Revision and layout of the matches that can be computed."""


def _target(name: str, options: list[Option], at: int) -> Ext:
    if name == "MARK" and [o[0] for o in options] == ["--set-xmark"]:
        return Ext(name, 2, at, struct.pack("<II", *_masked(options[0][2][0])))
    return Ext(name, WORDS, at, words(options).encode())


def tables(ruleset: Ruleset) -> Iterator[tuple[str, str]]:
    """(family, table) of each table in it."""
    yield from dict.fromkeys((family, table) for family, table, _ in ruleset.chains)
