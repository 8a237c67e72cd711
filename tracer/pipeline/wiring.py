# SPDX-License-Identifier: Apache-2.0
"""Puts together what every run on a live kernel needs, whichever command asks for it."""

from __future__ import annotations

from contextlib import ExitStack

from tracer.kernel.attach_plan import UnavailableProbe
from tracer.kernel.late_modules import LateModules
from tracer.kernel.session import Session
from tracer.node.namespaces import Namespaces
from tracer.pipeline.environment import Environment
from tracer.rules import live_resolver
from tracer.rules.rule_resolver import RuleResolver


def rules_of(session: Session, namespaces: Namespaces, stack: ExitStack, parts: Environment) -> RuleResolver:
    """What explains hits by rules, until the stack unwinds."""
    nft = next((row.probe for row in session.planned if row.probe.name == "nft_rule"), None)
    watching = live_resolver.watching(namespaces, session.acts, nft is not None, parts.reader, parts.watch)
    hits, why = stack.enter_context(watching)
    if nft and why:
        session.refused.append(UnavailableProbe(nft, why))
    stack.enter_context(LateModules(session.refused))
    return hits
