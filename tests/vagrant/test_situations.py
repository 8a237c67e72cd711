# SPDX-License-Identifier: Apache-2.0
"""The situations of `make incidents` name existing findings, and exist in every mode of kube-proxy."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vagrant"))

from incidents import service_situations, situations
from tracer.audit import checks
from tracer.findings import finders, syn_finders


def test_each_situation_names_existing_findings() -> None:
    packets, audits = {name for name, _ in (*finders(), *syn_finders())}, {name for name, _ in checks()}
    for each in (*situations.every(), *service_situations.every()):
        assert {each.packets} - {""} <= packets and {each.audit, *each.perhaps} - {""} <= audits, each.text
        assert each.ports and len(set(each.ports)) == len(each.ports)


def test_every_mode_has_faulty_and_healthy_situations() -> None:
    texts = [s.text for s in situations.every()]
    assert len(set(texts)) == len(texts)
    for mode in situations.BACKENDS:
        of = [s for s in situations.every() if s.backend == mode]
        assert any(s.audit for s in of) and any(s.packets for s in of)
        assert sum(not s.audit and not s.packets for s in of) >= 4, "healthy twins"


def test_each_fault_of_a_service_has_a_healthy_twin() -> None:
    """A twin stands behind its faults, and has another name."""
    every = service_situations.every()
    assert len({s.text for s in every}) == len(every) and not every[-1].packets
    faults = {s.packets for s in every} - {""}
    assert sum(not s.packets for s in every) >= len(faults) == 12
