# SPDX-License-Identifier: Apache-2.0
"""Recorded answers of nf_tables, with what nft listed at the same moment, and a netlink socket that gives them.

unshare -n sh -c 'nft -f RULES; python3 -m tests.support.nft_recordings FILE.json.xz'      # writes a recording
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tracer.node.nfnetlink import Message, Nfnetlink, attribute, attributes, text
from tracer.rules.nftables.netlink_dump import GETCHAIN, GETGEN, GETRULE, GETSET, GETSETELEM, GETTABLE

DATA = Path(__file__).parents[1] / "data/nft"
KINDS = (GETTABLE, GETCHAIN, GETRULE, GETSET)


@dataclass(frozen=True)
class Recording:
    """One recording.

    Attributes:
        body: Messages by kind, elements by family and attributes of the request, the output of `nft -j` and the generation.
    """

    body: Any

    @cached_property
    def listed(self) -> str:
        """What `nft -j list ruleset` printed."""
        return json.dumps(self.body["nft"])


def recording(name: str) -> Recording:
    return Recording(json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes())))


class RecordedNfnetlink:
    """Gives the answers of a recording in the place of Nfnetlink.

    Attributes:
        generations: Generations of the next questions for it; after them the recorded one.
        faults: Errors that the next dumps of rules raise, in order.
        elements_read: Names of the sets of which the elements were read.
    """

    def __init__(self, recorded: Recording) -> None:
        self._body = recorded.body
        self.generations: list[int] = []
        self.faults: list[Exception] = []
        self.elements_read: list[str] = []

    def get(self, kind: int) -> Message:
        assert kind == GETGEN
        now = self.generations.pop(0) if self.generations else self._body["generation"]
        return kind, 0, attribute(1, now)

    def dump(self, kind: int, watch: Callable[[int], None] | None = None) -> list[Message]:
        if kind == GETRULE and self.faults:
            raise self.faults.pop(0)
        return [(kind, family, bytes.fromhex(raw)) for family, raw in self._body["messages"][str(kind)]]

    def iter_dump(self, kind: int, family: int = 0, attrs: bytes = b"") -> Iterator[Message]:
        if kind != GETSETELEM:
            yield from self.dump(kind)
            return
        self.elements_read.append(text(attributes(attrs)[2]))
        for raw in self._body["elements"].get(f"{family} {attrs.hex()}", ()):
            yield kind, family, bytes.fromhex(raw)

    def close(self) -> None:
        pass

    def __enter__(self) -> RecordedNfnetlink:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def record() -> Any:
    """Records the rules of this network namespace."""
    with Nfnetlink() as nfnetlink:
        messages = {kind: nfnetlink.dump(kind) for kind in KINDS}
        elements = {}
        for _, family, raw in messages[GETSET]:
            a = attributes(raw)
            request = attribute(1, text(a[1])) + attribute(2, text(a[2]))
            elements[f"{family} {request.hex()}"] = [
                part.hex() for _, _, part in nfnetlink.iter_dump(GETSETELEM, family, request)
            ]
        generation = int.from_bytes(attributes(nfnetlink.get(GETGEN)[2])[1], "big")
    listed = subprocess.run(["nft", "-j", "list", "ruleset"], capture_output=True, check=True).stdout
    hexed = {kind: [[family, raw.hex()] for _, family, raw in found] for kind, found in messages.items()}
    return {"messages": hexed, "elements": elements, "generation": generation, "nft": json.loads(listed)}


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(lzma.compress(json.dumps(record()).encode()))
