# SPDX-License-Identifier: Apache-2.0
"""Compares a predicted path with a traced packet, and reports where they first differ.

Compared are the hooks of the node's namespace: the verdict of each table or chain and the deciding rule, each translation, and
the outcome if the packet ended there. If the packet's rules are not known, only the verdict is compared. The order of chains is
not compared if it is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tracer.model.hop import RewriteHop, RuleHop, decision_of
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet
from tracer.model.prediction import PredictedPath
from tracer.model.prediction_check import PredictionCheck
from tracer.model.rule import format_path
from tracer.packets.outcome import BAD
from tracer.util.endpoint_format import format_endpoint


@dataclass(frozen=True)
class ComparedStep:
    """One step that is compared. `key`: where; `action`: what happened there; `rule`: the deciding rule, "" = not known."""

    key: tuple[str, ...]
    action: str
    rule: str = ""

    @property
    def where(self) -> str:
        return " ".join(filter(None, self.key))


def steps(packet: Packet, netns: Netns = HOST) -> list[ComparedStep]:
    """The steps of a packet in a namespace, in order.

    Translations repeated from conntrack are omitted, and so are steps after the packet had left and was sent back.
    """
    found: list[ComparedStep] = []
    left = False
    for hop in packet.hops:
        if hop.netns != netns or hop.clone:
            continue
        if left and hop.hook is Hook.PREROUTING and hop.in_iface != "lo":
            break
        left = left or hop.hook is Hook.POSTROUTING
        if isinstance(hop, RuleHop):
            found.append(ComparedStep((hop.hook, hop.table, hop.base_chain), hop.verdict, _rule(hop)))
        elif isinstance(hop, RewriteHop) and not hop.nat.kind.startswith("reverse"):
            after = hop.nat.after
            to = format_endpoint(after.dst, after.dport) if hop.nat.kind == "DNAT" else after.src
            kind = "SNAT" if hop.nat.kind == "MASQUERADE" else hop.nat.kind
            found.append(ComparedStep((hop.hook, kind), to))
    return found


def _rule(hop: RuleHop) -> str:
    decision = decision_of(hop)
    return format_path(decision.path) if decision else ""


def compare(predicted_paths: Sequence[PredictedPath], packet: Packet, netns: Netns = HOST) -> PredictionCheck:
    """Compares a traced packet with the predicted path that agrees longest with it."""
    every_path = [each for path in predicted_paths for each in path.with_twins()]
    return max((_compare_path(path, packet, netns) for path in every_path), key=lambda c: (not c.difference, c.agreed))


def _compare_path(predicted: PredictedPath, packet: Packet, netns: Netns) -> PredictionCheck:
    expected_steps, seen = steps(predicted.packet), steps(packet, netns)
    keys = {s.key for s in seen}, {s.key for s in expected_steps}
    expected_steps = _placed([s for s in expected_steps if s.key in keys[0] or _counts(s)], seen, predicted)
    seen = [s for s in seen if s.key in keys[1] or _counts(s)]
    for at, (expected, met) in enumerate(zip(expected_steps, seen, strict=False)):
        if expected.key != met.key:
            return PredictionCheck(predicted, at, f"predicted {_format_step(expected)}, seen {_format_step(met)}")
        if expected.action != met.action or (met.rule and expected.rule != met.rule):
            return PredictionCheck(
                predicted, at, f"in {met.where} predicted {_format_step(expected, '')}, seen {_format_step(met, '')}"
            )
    common = min(len(expected_steps), len(seen))
    if len(expected_steps) > common:
        return PredictionCheck(predicted, common, f"predicted {_format_step(expected_steps[common])}, which was not seen")
    if len(seen) > common:
        return PredictionCheck(predicted, common, f"seen {_format_step(seen[common])}, which was not predicted")
    if predicted.packet.outcome in BAD and packet.outcome != predicted.packet.outcome:
        return PredictionCheck(predicted, common, f"predicted end: {predicted.packet.verdict}; seen: {packet.verdict}")
    return PredictionCheck(predicted, common, "")


def _placed(expected: list[ComparedStep], seen: Sequence[ComparedStep], predicted: PredictedPath) -> list[ComparedStep]:
    """The predicted steps; steps of one hook with an unknown order are put in the order in which they were seen."""
    order = {step.key: at for at, step in enumerate(seen)}
    free = [at for at, step in enumerate(expected) if step.key in predicted.loose and step.key in order]
    placed = list(expected)
    for _, run in groupby(enumerate(free), lambda pair: (pair[1] - pair[0], expected[pair[1]].key[0])):
        places = [at for _, at in run]
        for at, step in zip(places, sorted((expected[at] for at in places), key=lambda s: order[s.key]), strict=True):
            placed[at] = step
    return placed


def _counts(step: ComparedStep) -> bool:
    """Whether a step that only one side has is a difference. An empty table that accepts everything is none."""
    return len(step.key) == 2 or step.action != "ACCEPT"


def _format_step(step: ComparedStep, where: str | None = None) -> str:
    by = f" by {step.rule}" if step.rule else ""
    return f"{step.where + ' ' if where is None else where}{step.action}{by}"
