# SPDX-License-Identifier: Apache-2.0
"""A finding as a block of text that stands out from the packets around it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tracer.model.finding import Finding
from tracer.render._format import clock, count
from tracer.render._style import KEEP, Styler, plain

_COMMAND = re.compile(r"`[^`]+`")
LABEL, WHAT = 14, 10
"""Columns: where a part's text begins, and the width of what kind of proof it is."""


def block(finding: Finding, style: Styler, told: Finding | None = None) -> list[str]:
    """Its lines: the cause, what shows it and how each is known, what to check, what would mend it.

    told: as it was written before. Then only the cause is said again, and what has been learned since.
    """
    shade = "bad" if finding.certain else "doubt"
    mark = "!!" if finding.certain else "?"
    head = "FINDING" if finding.certain else "PERHAPS"
    number = count(finding.packets, "packet") if finding.packets else "without traffic"
    number += f", told above at {clock(told.last)}" if told else ""
    lines = [style(shade, f"{mark:>2} {head} {finding.name}") + style("quiet", f"  {number}")]
    lines.append(style.fold(f"   {style('strong', plain(finding.cause))}", 3))
    lines += [style.fold(line, LABEL + WHAT) for line in _proofs(finding, style, told)]
    for label, text, before in (("check", finding.check, told and told.check), ("cure", finding.cure, told and told.cure)):
        if text != before:
            lines.append(style.fold(f"   {label:<{LABEL - 3}}".replace(" ", KEEP) + _commands(text, style), LABEL))
    return lines


def _commands(text: str, style: Styler) -> str:
    """The text with its `commands` kept whole, so that each can be copied from one line."""
    return _COMMAND.sub(lambda found: style("change", found[0].replace(" ", KEEP)), plain(text))


def _proofs(finding: Finding, style: Styler, told: Finding | None) -> Iterator[str]:
    label = "since then" if told else "because"
    for proof in finding.proofs:
        if told and proof in told.proofs:
            continue
        head = f"   {label:<{LABEL - 3}}{proof.what:<{WHAT}}".replace(" ", KEEP)
        yield f"{head}{plain(proof.text)}  {style('quiet', f'({proof.evidence})'.replace(' ', KEEP))}"
        label = ""
