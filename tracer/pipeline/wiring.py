# SPDX-License-Identifier: Apache-2.0
"""Creates the objects that every run on a live kernel needs."""

from __future__ import annotations

from contextlib import ExitStack

from tracer.kernel.attach_plan import UnavailableProbe
from tracer.kernel.late_modules import LateModules
from tracer.kernel.session import Session
from tracer.node.namespaces import Namespaces
from tracer.pipeline.environment import Environment
from tracer.rules import live_resolver
from tracer.rules.rule_resolver import RuleResolver


def rule_resolver(session: Session, namespaces: Namespaces, stack: ExitStack, environment: Environment) -> RuleResolver:
    """The resolver of rules, until the stack unwinds."""
    nft_probe = next((row.probe for row in session.planned if row.probe.name == "nft_rule"), None)
    has_nft = nft_probe is not None
    watching = live_resolver.watching(
        namespaces, session.extensions, has_nft, environment.table_reader, environment.update_source
    )
    resolver, reason = stack.enter_context(watching)
    if nft_probe and reason:
        session.refused.append(UnavailableProbe(nft_probe, reason))
    stack.enter_context(LateModules(session.refused))
    return resolver
