# SPDX-License-Identifier: Apache-2.0
"""The nouns of findings: what is wrong, and each thing that shows it, with how it is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FindingEvidence:
    """One piece of evidence.

    what: "packet", "rule", "server", "object", "process", "setting", "counter", "address", "route". evidence: how it is known:
    "observed" or "derived" of what a packet met, else who told it: "Kubernetes API", "/proc/net/tcp", "CNI result cache".
    """

    what: str
    text: str
    evidence: str


@dataclass(frozen=True)
class Finding:
    """Something is wrong, for one cause.

    name: of the finding's file. key: tells causes apart: a second packet with the same key shows the same cause. cause: one
    sentence. check: what to look at, cure: what would mend it. certain: nothing in it is a guess; where that is False the
    cause is only the likely one, and cause says so. packets: how many show it, 0: it was found without traffic; first, last: ns
    since the epoch, of those packets; numbers: `number` of the first ones.
    """

    name: str
    key: tuple[object, ...]
    cause: str
    proofs: tuple[FindingEvidence, ...]
    check: str
    cure: str
    certain: bool = True
    packets: int = 1
    first: int = 0
    last: int = 0
    numbers: tuple[int, ...] = ()
