# SPDX-License-Identifier: Apache-2.0
"""A full conntrack table, found without a packet."""

from __future__ import annotations

import pytest

from tests.support import audits
from tests.support.findings import FakeNode
from tracer.audit.conntrack_full import check
from tracer.findings.conntrack_full import COUNT, LIMIT


@pytest.mark.parametrize(
    ("count", "limit", "expected"), [("262144", "262144", 1), ("250000", "262144", 1), ("1000", "262144", 0), ("5", "", 0)]
)
def test_full_or_nearly(count: str, limit: str, expected: int) -> None:
    found = list(
        check(audits.of_text("", node=FakeNode(settings={COUNT.name: count, LIMIT.name: limit}, conntrack={"drop": 7})))
    )
    assert len(found) == expected
    for each in found:
        assert each.certain and f"nf_conntrack_count = {count}, nf_conntrack_max = {limit}" in each.proofs[0].text
        assert each.proofs[1].text == "of conntrack, since boot: drop 7"
