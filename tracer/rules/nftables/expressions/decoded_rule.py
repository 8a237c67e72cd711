# SPDX-License-Identifier: Apache-2.0
"""A rule while its expressions are decoded: its registers, what was decoded, and what is known of the packet's protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tracer.rules.nftables import data_types
from tracer.rules.nftables.expressions.registers import Loaded, Registers, json_of, unknown
from tracer.rules.nftables.netlink_sets import SetDefinition
from tracer.util.json_value import Json, JsonObject

FindSet = Callable[[str], SetDefinition | None]
"""Gives the set with a name in the rule's table."""
ReadElements = Callable[[str], Sequence[bytes]]
"""Gives the elements of a set in the rule's table (attributes NFTA_SET_ELEM_*). Raises UnreadElements."""
FAMILIES = {2: "ip", 10: "ip6"}
"""Names of the families with addresses, by number (NFPROTO_*)."""
_LAYER4 = {1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 58: "icmpv6", 132: "sctp", 136: "udplite"}
_ETHERNET = 1
"""ARPHRD_ETHER."""
_ETHERTYPES = {0x0800: "ip", 0x86DD: "ip6"}
_HEADERS: dict[str, Json] = {
    "ip": {"payload": {"protocol": "ip", "field": "protocol"}},
    "ip6": {"payload": {"protocol": "ip6", "field": "nexthdr"}},
    "ether": {"payload": {"protocol": "ether", "field": "type"}},
}
"""The fields that say which protocol follows."""


class DecodedRule:
    """Decodes no expression itself: the steps of each expression change it.

    Args:
        family: Family of the rule's table.
        find_set: Gives the definitions of sets.
        read_elements: Gives the elements of unnamed sets. None = an unnamed set is given by the kernel's name for it.

    Attributes:
        expressions: What was decoded, as `nft -j` writes it.
        network: The protocol of the network header, as far as it is known: "ip", "ip6", or "".
        transport: The protocol of the transport header, as far as it is known, or "".
    """

    def __init__(self, family: str, find_set: FindSet, read_elements: ReadElements | None) -> None:
        self.find_set, self.read_elements = find_set, read_elements
        self.registers = Registers()
        self.expressions: list[JsonObject] = []
        self.family = family
        self.network = family if family in ("ip", "ip6") else ""
        self.transport = ""
        self._tests: dict[str, JsonObject] = {}
        """The test of the protocol of a layer that nft does not show where a field of this protocol follows."""

    def add(self, expression: JsonObject) -> None:
        """Adds a match or a statement."""
        self.expressions.append(expression)

    def give_up(self, name: str) -> None:
        """An expression of unknown meaning: it may have changed any register."""
        self.add(unknown(name))
        self.registers.forget()

    def store(self, register: int, loaded: Loaded) -> None:
        """Puts a value into a register."""
        if not self.registers.store(register, loaded):
            self.give_up("register")

    def operand(self, register: int, size: int) -> tuple[Json, list[int]]:
        """A key in the registers as nft writes it, and the types of its parts."""
        parts = self.registers.span(register, size)
        if not parts:
            return unknown("register"), []
        for part in parts:
            self.use(part)
        return data_types.concatenation(json_of(part) for part in parts), [part.kind for part in parts]

    def typed(self, register: int, size: int, kind: int, otherwise: Json) -> Json:
        """The value of a register that is written to a field of this type: a constant gets the type of the field."""
        loaded = self.registers.at(register)
        if loaded.raw is None:
            return otherwise
        return data_types.value(kind, loaded.raw[:size] if len(loaded.raw) > size else loaded.raw)

    def use(self, loaded: Loaded) -> None:
        """Removes the test of a protocol that this header field implies."""
        layers = (loaded.layer, "nh") if self.transport in ("icmp", "icmpv6") and loaded.layer == "th" else (loaded.layer,)
        for layer in layers:
            test = self._tests.pop(layer, None)
            if test is not None:
                self.expressions = [each for each in self.expressions if each is not test]

    def learn(self, loaded: Loaded, raw: bytes, match: JsonObject) -> None:
        """Keeps which protocol a match says the packet has."""
        value = data_types.as_integer(loaded.kind, raw)
        if loaded.json in ({"meta": {"key": "l4proto"}}, _HEADERS["ip"], _HEADERS["ip6"]):
            self.transport = _LAYER4.get(value, "")
            if self.transport and loaded.json == {"meta": {"key": "l4proto"}}:
                self._tests["th"] = match
        elif loaded.json == {"meta": {"key": "nfproto"}} and self.family == "inet":
            self.network = FAMILIES.get(value, "")
            self._tests["nh"] = match
        elif loaded.json == {"meta": {"key": "iiftype"}} and value == _ETHERNET:
            self._tests["ll"] = match
        elif loaded.json in ({"meta": {"key": "protocol"}}, _HEADERS["ether"]) and self.family in ("bridge", "netdev", "inet"):
            self.network = _ETHERTYPES.get(value, "")
            if self.network:
                self._tests["nh"] = match


Row = tuple[Callable[[DecodedRule, Mapping[int, bytes]], None], int]
"""Decodes an expression, and the last attribute that is known. An expression with a later one may mean something else."""
