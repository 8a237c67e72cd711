# SPDX-License-Identifier: Apache-2.0
"""Answers of policies in words: what each policy would have needed to allow a packet."""

from __future__ import annotations

from tracer.kube.policies.evaluation import DirectionAnswer, Known, PolicyAnswer, RuleAnswer
from tracer.model.policy import INGRESS, LabelSelector, PolicyPeer, PolicyPort, PolicyRule

MOST_RULES, MOST_PARTS = 4, 4
"""Rules of a policy, and peers or ports of a rule, that are written out."""


def reason(answer: PolicyAnswer, of: DirectionAnswer, protocol: str, port: int) -> str:
    """Formats why a policy does not allow a packet, or that by the objects it does.

    Args:
        answer: The policy's answer.
        of: The answer that it belongs to.
        protocol: The packet's protocol.
        port: Its destination port.
    """
    if answer.allows:
        number = next(rule.number for rule in answer.rules if rule.allows)
        return f"its {of.direction} rule {number} allows it, by the objects of the API"
    if not answer.rules:
        return f"it has no {of.direction} rule"
    texts = [_rule_reason(rule, of, f"{protocol} {port}") for rule in answer.rules[:MOST_RULES]]
    more = len(answer.rules) - MOST_RULES
    return "; ".join(texts) + (f"; {more} more rules" if more > 0 else "")


def _rule_reason(answer: RuleAnswer, of: DirectionAnswer, sent: str) -> str:
    subject = f"{of.direction} rule {answer.number} allows"
    parts = []
    if not answer.port:
        parts.append(f"{ports_in_words(answer.rule)}{_not_known(answer.port, sent)}")
    if not answer.peer:
        side = "from" if of.direction == INGRESS else "to"
        parts.append(f"only {side} {peers_in_words(answer.rule)}{_not_known(answer.peer, of.other.text)}")
    return f"{subject} {', and '.join(parts)}"


def _not_known(answer: Known, subject: str) -> str:
    return f" (not known whether {subject} is one of them)" if answer is None else f", not {subject}"


def ports_in_words(rule: PolicyRule) -> str:
    """Formats a rule's ports: "tcp 80 or udp 53"."""
    return _list([_port(port) for port in rule.ports]) or "all ports"


def peers_in_words(rule: PolicyRule) -> str:
    """Formats a rule's peers: "pods with app=web"."""
    return _list([_peer(peer) for peer in rule.peers]) or "everywhere"


def _list(texts: list[str]) -> str:
    more = len(texts) - MOST_PARTS
    return " or ".join(texts[:MOST_PARTS]) + (f" or {more} more" if more > 0 else "")


def _port(port: PolicyPort) -> str:
    return f"{port.protocol} {port.name or port.port or 'all ports'}" + (f"-{port.end}" if port.end else "")


def _peer(peer: PolicyPeer) -> str:
    if peer.block:
        return peer.block + (f" without {_list(list(peer.exceptions))}" if peer.exceptions else "")
    pods = f"pods with {selector_in_words(peer.pods)}" if peer.pods and peer.pods.terms else "all pods"
    if peer.namespaces is None:
        return f"{pods} of its namespace"
    if not peer.namespaces.terms:
        return f"{pods} of all namespaces"
    return f"{pods} of namespaces with {selector_in_words(peer.namespaces)}"


def selector_in_words(selector: LabelSelector) -> str:
    """Formats a selector as kubectl does: "app=web,tier in (a,b),!old"; "everything" without a term."""
    texts = []
    for term in selector.terms:
        values = ",".join(term.values)
        if term.operator in ("Exists", "DoesNotExist"):
            texts.append("!" * (term.operator == "DoesNotExist") + term.key)
        elif term.operator == "In" and len(term.values) == 1:
            texts.append(f"{term.key}={values}")
        else:
            texts.append(f"{term.key} {'in' if term.operator == 'In' else 'notin'} ({values})")
    return ",".join(texts) or "everything"
