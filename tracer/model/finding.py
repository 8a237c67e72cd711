# SPDX-License-Identifier: Apache-2.0
"""Findings and their evidence."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.model.kube import ObjectReference


@dataclass(frozen=True)
class FindingEvidence:
    """One piece of evidence for a finding.

    Attributes:
        what: "packet", "rule", "server", "object", "process", "setting", "counter", "address" or "route".
        text: The evidence as a sentence.
        evidence: How it is known: "observed" or "derived" for what a packet met, else the source: "Kubernetes API",
            "/proc/net/tcp", "CNI result cache".
    """

    what: str
    text: str
    evidence: str


def likely_cause(cause: str, doubt: str) -> str:
    """The sentence of a cause that is only likely.

    Args:
        cause: The sentence of the certain cause. Its first word is no name.
        doubt: Why it may not be the cause, a sentence; "" = it is certain.
    """
    return f"Perhaps {cause[0].lower()}{cause[1:]} {doubt}" if doubt else cause


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, with one cause.

    Attributes:
        name: Name of the finding's file.
        key: Identity of the cause: another packet with the same key shows the same cause.
        cause: The cause, one sentence.
        proofs: The evidence.
        check: What to look at.
        cure: What would mend it.
        certain: Nothing in it is a guess. If False, the cause is only the likely one, and `cause` says so.
        packets: Number of packets that show it; 0 = found without traffic.
        first: Time of the first of those packets, ns since the epoch.
        last: Time of the last of them, ns since the epoch.
        numbers: `number` of the first of them.
        subject: The Kubernetes object that is wrong, or that suffers; None = the node, or no object that is known.
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
    subject: ObjectReference | None = None
