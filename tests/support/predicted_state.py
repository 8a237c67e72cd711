# SPDX-License-Identifier: Apache-2.0
"""The state of a predicted path, as the forecasts of matches read it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tracer.rules.packet_view import PacketView


@dataclass(frozen=True)
class PredictedState:
    """A path state with fixed answers; None: the answer cannot be predicted."""

    states: frozenset[str] = frozenset({"NEW"})
    assumed: frozenset[tuple[Hashable, bool]] = frozenset()

    def in_recent(self, name: str, address: str) -> bool | None:
        return None if name == "FULL" else False

    def by_bridge(self, face: str) -> bool | None:
        return None if face == "cni0" else False

    def in_set(self, name: str, flags: tuple[str, ...], packet: PacketView) -> bool | None:
        return {"A": None, "X": None}.get(name, (name, flags) == ("FULL", ("src", "dst")))

    def type_of(self, address: str) -> str:
        return {"192.168.56.10": "LOCAL", "10.0.0.1": "UNICAST"}.get(address, "")
