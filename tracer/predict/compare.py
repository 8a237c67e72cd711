# SPDX-License-Identifier: Apache-2.0
"""What was told of a packet beside what a packet really met: where they first differ.

Compared are the hooks of the node's namespace: each table's or chain's verdict and the rule that decided, each translation, and
how it ended if it ended there. Where the packet's rules are not known, their verdict alone. Of chains whose order is not known
it is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tracer.model.packet import Hop, Packet
from tracer.model.prediction import PredictedPath
from tracer.model.prediction_check import PredictionCheck
from tracer.model.rule import format_path
from tracer.packets.outcome import BAD
from tracer.util.endpoint_format import format_endpoint


@dataclass(frozen=True)
class ComparedStep:
    """One thing that was compared. key: where; told: what happened there; rule: which decided, "" = not known."""

    key: tuple[str, ...]
    told: str
    rule: str = ""

    @property
    def where(self) -> str:
        return " ".join(filter(None, self.key))


def steps(packet: Packet, netns: str = "node") -> list[ComparedStep]:
    """What a packet met in this namespace, in order; translations that conntrack repeats are left out, and so is what it met
    when it had left and was sent back.
    """
    found: list[ComparedStep] = []
    left = False
    for hop in packet.hops:
        if hop.netns != netns or hop.clone:
            continue
        if left and hop.hook == "PREROUTING" and hop.in_iface != "lo":
            break
        left = left or hop.hook == "POSTROUTING"
        if hop.what in ("table", "chain"):
            found.append(ComparedStep((hop.hook, hop.table, hop.chain), hop.verdict, _rule(hop)))
        elif hop.nat and not hop.nat.kind.startswith("reverse"):
            after = hop.nat.after
            to = format_endpoint(after.dst, after.dport) if hop.nat.kind == "DNAT" else after.src
            kind = "SNAT" if hop.nat.kind == "MASQUERADE" else hop.nat.kind
            found.append(ComparedStep((hop.hook, kind), to))
    return found


def _rule(hop: Hop) -> str:
    return format_path(hop.rule_trace.decision.path) if hop.rule_trace and hop.rule_trace.decision else ""


def compare(predicted_paths: Sequence[PredictedPath], packet: Packet, netns: str = "node") -> PredictionCheck:
    """The story that agrees longest with a packet that was traced."""
    every = [each for story in predicted_paths for each in story.with_twins()]
    return max((_with(story, packet, netns) for story in every), key=lambda c: (not c.difference, c.agreed))


def _with(predicted: PredictedPath, packet: Packet, netns: str) -> PredictionCheck:
    told, seen = steps(predicted.packet), steps(packet, netns)
    keys = {s.key for s in seen}, {s.key for s in told}
    told = _placed([s for s in told if s.key in keys[0] or _counts(s)], seen, predicted)
    seen = [s for s in seen if s.key in keys[1] or _counts(s)]
    for at, (expected, met) in enumerate(zip(told, seen, strict=False)):
        if expected.key != met.key:
            return PredictionCheck(predicted, at, f"explained was {_said(expected)}, seen {_said(met)}")
        if expected.told != met.told or (met.rule and expected.rule != met.rule):
            return PredictionCheck(predicted, at, f"in {met.where} explained was {_said(expected, '')}, seen {_said(met, '')}")
    common = min(len(told), len(seen))
    if len(told) > common:
        return PredictionCheck(predicted, common, f"explained was {_said(told[common])}, which was not seen")
    if len(seen) > common:
        return PredictionCheck(predicted, common, f"seen {_said(seen[common])}, which was not explained")
    if predicted.packet.outcome in BAD and packet.outcome != predicted.packet.outcome:
        return PredictionCheck(
            predicted, common, f"the end was explained as: {predicted.packet.verdict}; seen: {packet.verdict}"
        )
    return PredictionCheck(predicted, common, "")


def _placed(told: list[ComparedStep], seen: Sequence[ComparedStep], predicted: PredictedPath) -> list[ComparedStep]:
    """The steps that were told, those of one hook whose order is not known in the order they were seen."""
    order = {step.key: at for at, step in enumerate(seen)}
    free = [at for at, step in enumerate(told) if step.key in predicted.loose and step.key in order]
    placed = list(told)
    for _, run in groupby(enumerate(free), lambda pair: (pair[1] - pair[0], told[pair[1]].key[0])):
        places = [at for _, at in run]
        for at, step in zip(places, sorted((told[at] for at in places), key=lambda s: order[s.key]), strict=True):
            placed[at] = step
    return placed


def _counts(step: ComparedStep) -> bool:
    """Whether a step that only one side has is a difference: not an empty table that lets everything pass."""
    return len(step.key) == 2 or step.told != "ACCEPT"


def _said(step: ComparedStep, where: str | None = None) -> str:
    by = f" by {step.rule}" if step.rule else ""
    return f"{step.where + ' ' if where is None else where}{step.told}{by}"
