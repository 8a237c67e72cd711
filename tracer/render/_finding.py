"""A finding as a block of text that stands out from the packets around it."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.findings.model import Finding
from tracer.render._ink import KEEP, Ink, plain

LABEL, WHAT = 14, 10
"""Columns: where a part's text begins, and the width of what kind of proof it is."""


def block(finding: Finding, ink: Ink) -> list[str]:
    """Its lines: the cause, what shows it and how each is known, what to check, what would mend it."""
    shade = "bad" if finding.certain else "doubt"
    mark = "!!" if finding.certain else "?"
    head = "FINDING" if finding.certain else "PERHAPS"
    count = f"{finding.packets} packet{'s' * (finding.packets != 1)}" if finding.packets else "without traffic"
    lines = [ink(shade, f"{mark:>2} {head} {finding.name}") + ink("quiet", f"  {count}")]
    lines.append(ink.fold(f"   {ink('strong', plain(finding.cause))}", 3))
    lines += [ink.fold(line, LABEL + WHAT) for line in _proofs(finding, ink)]
    for label, text in (("check", finding.check), ("cure", finding.cure)):
        lines.append(ink.fold(f"   {label:<{LABEL - 3}}".replace(" ", KEEP) + plain(text), LABEL))
    return lines


def _proofs(finding: Finding, ink: Ink) -> Iterator[str]:
    for at, proof in enumerate(finding.proofs):
        label = "" if at else "because"
        head = f"   {label:<{LABEL - 3}}{proof.what:<{WHAT}}".replace(" ", KEEP)
        yield f"{head}{plain(proof.text)}  {ink('quiet', f'({proof.evidence})'.replace(' ', KEEP))}"
