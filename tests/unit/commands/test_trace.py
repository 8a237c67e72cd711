# SPDX-License-Identifier: Apache-2.0
"""What a run says that it cannot tell."""

from __future__ import annotations

from tracer.commands import trace
from tracer.kernel.attach_plan import Refused
from tracer.kernel.probes import PROBES
from tracer.model.check import Fact

NAT, RULE, IPVS = (next(p for p in PROBES if p.name == name) for name in ("nat", "nft_rule", "ipvs_nat4"))


def test_what_the_kernel_refused_corrects_the_doctor() -> None:
    full = [Fact("kernel", "ok", "Linux"), Fact("probe nat", "ok", "by fentry"), Fact("probe nft_rule", "missing", "no BTF", 1)]
    refused = [Refused(NAT, "the kernel refused it (EPERM)"), Refused(RULE, "no BTF"), Refused(IPVS, "ip_vs is not loaded")]
    said = Fact("probe nat", "degraded", f"no {NAT.tells}: the kernel refused it (EPERM)")
    assert trace.corrected(full, refused) == [full[0], said, full[2]]
    assert [fact.subject for fact in trace.missed(refused)] == ["nat", "nft_rule"]
