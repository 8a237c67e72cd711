# SPDX-License-Identifier: Apache-2.0
"""Packets, findings and notes as the text format shows them, for a part of a screen: rich Text, folded to a given width."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket
from tracer.model.packet import Packet
from tracer.render._clock import Clock
from tracer.render._finding import block
from tracer.render._format import cause_style
from tracer.render._joined import joined_lines
from tracer.render._packet import MARGIN, TIME, PacketLines
from tracer.render._style import Styler, plain, styled
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
    cause = [_cause(verdict, ink)] if verdict else []
    return _text([lines.header(packet), *lines.ends(packet), *lines.hops(packet), lines.end(packet), *cause])


def joined_text(
    joined: JoinedPacket, columns: int, verbose: bool = False, verdicts: Sequence[tuple[str, HandshakeVerdict]] = ()
) -> Text:
    """The block of a packet of several nodes: its part on each of them, and the time between them.

    Args:
        joined: The packet.
        columns: Width of the text, characters.
        verbose: Show every hop, not only those that decided something.
        verdicts: The verdicts on the packet, if it is a SYN: the node, and its verdict.
    """
    ink = _PaneStyler(columns)
    lines = PacketLines(ink, verbose, Clock(shift=joined.views[0].shift))
    causes = (_cause(verdict, ink, f"{node}: ") for node, verdict in verdicts)
    return _text([*joined_lines(joined, lines, ink), *causes])


def _cause(verdict: HandshakeVerdict, ink: Styler, before: str = "") -> str:
    """The line with the cause of a SYN. before: what stands before it."""
    derived = "  (derived)" * (verdict.cause.evidence is Evidence.DERIVED)
    said = ink("place", plain(before)) + ink(cause_style(verdict), plain(verdict.cause.text)) + ink("quiet", derived)
    return ink.fold(f"{'cause':>{TIME}}  {said}", MARGIN)


def finding_text(finding: Finding, columns: int, node: str = "") -> Text:
    """The block of a finding: cause, evidence, check, cure.

    Args:
        finding: The finding.
        columns: Width of the text, characters.
        node: The node that found it, or that the packets left; "" = the only node of the run.
    """
    ink = _PaneStyler(columns)
    place = [ink("place", plain(f"node {node}"))] if node else []
    return _text([*place, *block(finding, ink)])


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
        self._around = styled(self._console)
