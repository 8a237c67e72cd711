# SPDX-License-Identifier: Apache-2.0
"""Formats a finding as a block of text that is easy to see between packets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tracer.model.finding import Finding
from tracer.render._clock import local
from tracer.render._format import count
from tracer.render._style import KEEP, Styler, plain

_COMMAND = re.compile(r"`[^`]+`")
_WORD = re.compile(r"""(?:[^\s"']|"(?:\\.|[^"\\])*"|'[^']*')+""")
"""A word of a shell command, with its quoted parts."""
CONTINUES = "\\"
"""What the shell joins two lines at."""
LABEL, KIND = 14, 10
"""Columns: the start of a part's text, and the width of the kind of proof."""


def block(finding: Finding, style: Styler, previous: Finding | None = None, point: Callable[[int], str] = local) -> list[str]:
    """Returns the lines of a finding: its cause, its evidence, what to check, the cure.

    Args:
        finding: The finding.
        style: The styler of the output stream.
        previous: The finding as it was written before; None = never. If given, only the cause and the new parts are written.
        point: Formats a point in time, ns since the epoch; "" = times are not shown.
    """
    shade = "bad" if finding.certain else "doubt"
    mark = "!!" if finding.certain else "?"
    head = "FINDING" if finding.certain else "PERHAPS"
    number = count(finding.packets, "packet") if finding.packets else "without traffic"
    if previous:
        number += f", reported above at {when}" if (when := point(previous.last)) else ", reported above"
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
    """Returns the text with `commands` that are not folded; one that is longer than a line goes on after a backslash."""
    room = style.width - LABEL if style.width else None
    return _COMMAND.sub(lambda found: style("change", _copied(found[0], room)), plain(text))


def _copied(command: str, room: int | None) -> str:
    """A command in the form in which it can be copied from a terminal and run. room: columns of a line; None = any number."""
    if room is None or len(command) < room or " ".join(words := _WORD.findall(command)) != command:
        return command.replace(" ", KEEP)
    lines = [words[0]]
    for word in words[1:]:
        fits = len(lines[-1]) + len(word) + 2 * len(f" {CONTINUES}") <= room
        lines[-1:] = [f"{lines[-1]} {word}"] if fits else [f"{lines[-1]} {CONTINUES}", word]
    return " ".join(line.replace(" ", KEEP) for line in lines)


def _proof_lines(finding: Finding, style: Styler, previous: Finding | None) -> Iterator[str]:
    label = "since then" if previous else "because"
    for proof in finding.proofs:
        if previous and proof in previous.proofs:
            continue
        head = f"   {label:<{LABEL - 3}}{proof.what:<{KIND}}".replace(" ", KEEP)
        yield f"{head}{plain(proof.text)}  {style('quiet', f'({proof.evidence})'.replace(' ', KEEP))}"
        label = ""
