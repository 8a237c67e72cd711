# SPDX-License-Identifier: Apache-2.0
"""The results that a run reports as not available."""

from __future__ import annotations

from tracer.commands import trace
from tracer.kernel.attach_plan import UnavailableProbe
from tracer.kernel.probes import PROBES
from tracer.model.check import CheckResult

NAT, RULE, IPVS = (next(p for p in PROBES if p.name == name) for name in ("nat", "nft_rule", "ipvs_nat4"))


def test_refused_probes_correct_the_check_results() -> None:
    full = [
        CheckResult("kernel", "ok", "Linux"),
        CheckResult("probe nat", "ok", "by fentry"),
        CheckResult("probe nft_rule", "missing", "no BTF", 1),
    ]
    refused = [
        UnavailableProbe(NAT, "the kernel refused it (EPERM)"),
        UnavailableProbe(RULE, "no BTF"),
        UnavailableProbe(IPVS, "ip_vs is not loaded"),
    ]
    corrected = CheckResult("probe nat", "degraded", f"no {NAT.shows}: the kernel refused it (EPERM)")
    assert trace.corrected(full, refused) == [full[0], corrected, full[2]]
    assert [fact.subject for fact in trace.unavailable_probes(refused)] == ["nat", "nft_rule"]
