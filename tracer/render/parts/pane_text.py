# SPDX-License-Identifier: Apache-2.0
"""Packets, findings and notes as the text format shows them, for a part of a screen: rich Text, folded to a given width."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.render._clock import Clock
from tracer.render._finding import block
from tracer.render._format import cause_style
from tracer.render._packet import MARGIN, TIME, PacketLines
from tracer.render._style import STYLES, Styler, plain
from tracer.util.escape import escaped_line


def packet_text(packet: Packet, columns: int, verbose: bool = False, verdict: HandshakeVerdict | None = None) -> Text:
    """The block of a packet.

    Args:
        packet: The packet.
        columns: Width of the text, characters.
        verbose: Show every hop, not only those that decided something.
        verdict: The verdict on the packet, if it is a SYN; None = no verdict.
    """
    ink = _PaneStyler(columns)
    lines = PacketLines(ink, verbose, Clock())
    cause = []
    if verdict:
        derived = "  (derived)" * (verdict.cause.evidence is Evidence.DERIVED)
        said = ink(cause_style(verdict), plain(verdict.cause.text)) + ink("quiet", derived)
        cause.append(ink.fold(f"{'cause':>{TIME}}  {said}", MARGIN))
    return _text([lines.header(packet), *lines.ends(packet), *lines.hops(packet), lines.end(packet), *cause])


def finding_text(finding: Finding, columns: int) -> Text:
    """The block of a finding: cause, evidence, check, cure. columns: Width of the text, characters."""
    return _text(block(finding, _PaneStyler(columns)))


def notes_text(notes: Iterable[str], columns: int) -> Text:
    """Notes for the user, oldest first. columns: Width of the text, characters."""
    ink = _PaneStyler(columns)
    return _text(ink.fold(plain(note), 2) for note in notes)


def _text(lines: Iterable[str]) -> Text:
    """Lines of the text format. Whatever control character or markup is in their data is shown, not interpreted."""
    return Text.from_ansi("\n".join(map(escaped_line, lines)), no_wrap=True, end="")


class _PaneStyler(Styler):
    """Styles and folds text for a part of a screen. columns: its width, characters."""

    def __init__(self, columns: int) -> None:
        self._console = Console(
            file=io.StringIO(), width=columns, force_terminal=True, color_system="standard", highlight=False, soft_wrap=True
        )
        self._folds = True
        self._around = {name: self._codes(look) for name, look in STYLES.items()}
