# SPDX-License-Identifier: Apache-2.0
"""Formats a finding as a block of text that is easy to see between packets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tracer.model.finding import Finding
from tracer.render._format import clock, count
from tracer.render._style import KEEP, Styler, plain

_COMMAND = re.compile(r"`[^`]+`")
LABEL, KIND = 14, 10
"""Columns: the start of a part's text, and the width of the kind of proof."""


def block(finding: Finding, style: Styler, previous: Finding | None = None) -> list[str]:
    """Returns the lines of a finding: its cause, its evidence, what to check, the cure.

    Args:
        finding: The finding.
        style: The styler of the output stream.
        previous: The finding as it was written before; None = never. If given, only the cause and the new parts are written.
    """
    shade = "bad" if finding.certain else "doubt"
    mark = "!!" if finding.certain else "?"
    head = "FINDING" if finding.certain else "PERHAPS"
    number = count(finding.packets, "packet") if finding.packets else "without traffic"
    number += f", reported above at {clock(previous.last)}" if previous else ""
    lines = [style(shade, f"{mark:>2} {head} {finding.name}") + style("quiet", f"  {number}")]
    lines.append(style.fold(f"   {style('strong', plain(finding.cause))}", 3))
    lines += [style.fold(line, LABEL + KIND) for line in _proof_lines(finding, style, previous)]
    for label, text, before in (
        ("check", finding.check, previous and previous.check),
        ("cure", finding.cure, previous and previous.cure),
    ):
        if text != before:
            lines.append(style.fold(f"   {label:<{LABEL - 3}}".replace(" ", KEEP) + _commands(text, style), LABEL))
    return lines


def _commands(text: str, style: Styler) -> str:
    """Returns the text with unbreakable `commands`, so that each can be copied from one line."""
    return _COMMAND.sub(lambda found: style("change", found[0].replace(" ", KEEP)), plain(text))


def _proof_lines(finding: Finding, style: Styler, previous: Finding | None) -> Iterator[str]:
    label = "since then" if previous else "because"
    for proof in finding.proofs:
        if previous and proof in previous.proofs:
            continue
        head = f"   {label:<{LABEL - 3}}{proof.what:<{KIND}}".replace(" ", KEEP)
        yield f"{head}{plain(proof.text)}  {style('quiet', f'({proof.evidence})'.replace(' ', KEEP))}"
        label = ""
