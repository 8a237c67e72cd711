# SPDX-License-Identifier: Apache-2.0
"""The table of connections, told without a packet."""

from __future__ import annotations

import pytest

from tests.support import audits
from tests.support.findings import FakeNode
from tracer.audit.conntrack_full import check
from tracer.findings.conntrack_full import COUNT, LIMIT


@pytest.mark.parametrize(
    ("count", "most", "expected"), [("262144", "262144", 1), ("250000", "262144", 1), ("1000", "262144", 0), ("5", "", 0)]
)
def test_full_or_nearly(count: str, most: str, expected: int) -> None:
    found = list(check(audits.of_text("", node=FakeNode(settings={COUNT: count, LIMIT: most}, conntrack={"drop": 7}))))
    assert len(found) == expected
    for each in found:
        assert each.certain and f"nf_conntrack_count = {count}, nf_conntrack_max = {most}" in each.proofs[0].text
        assert each.proofs[1].text == "of conntrack, since boot: drop 7"
