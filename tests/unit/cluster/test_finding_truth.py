# SPDX-License-Identifier: Apache-2.0
"""The comparison of findings about several nodes with the faults that were made."""

from __future__ import annotations

from typing import Any

import tests.cluster  # noqa: F401  # the path of lab
from tests.cluster import finding_truth
from tests.cluster.finding_truth import ExpectedFinding, FindingCount

Line = dict[str, Any]
WRONG_NODE = ExpectedFinding("local_policy_no_endpoint", ("ask node node-a",))
LONG = ExpectedFinding("overlay_mtu", ("from node node-b",), certain=False)


def finding(name: str = "local_policy_no_endpoint", text: str = "Clients ask node node-a.", certain: bool = True) -> Line:
    return {"type": "finding", "name": name, "text": text, "certain": certain, "count": 1, "packets": [1]}


def summary(*findings: Line) -> Line:
    return {"type": "summary", "findings": list(findings)}


def test_a_finding_that_was_expected() -> None:
    lines = [finding(), {"type": "summary", "node": "node-a", "findings": []}, summary(finding())]
    assert finding_truth.compare(lines, [WRONG_NODE]) == FindingCount(expected=1, found=1)
    assert finding_truth.compare(lines, [WRONG_NODE]).line == "expected=1 found=1 wrong=0 perhaps=0"


def test_one_that_is_missing_or_only_a_guess() -> None:
    assert finding_truth.compare([summary()], [WRONG_NODE]).missing == [
        "not found: local_policy_no_endpoint with 'ask node node-a'"
    ]
    found = finding_truth.compare([summary(finding(certain=False))], [WRONG_NODE])
    assert (found.found, found.perhaps, len(found.missing)) == (0, 1, 1)
    found = finding_truth.compare([summary(finding("overlay_mtu", "from node node-b"))], [LONG])
    assert (found.found, len(found.wrong)) == (0, 1), "a certain one is not the guess"


def test_one_without_a_fault_is_wrong() -> None:
    other = finding(text="Clients ask node node-b.")
    found = finding_truth.compare([other, summary(finding(), other)], [WRONG_NODE])
    assert found.found == 1 and found.wrong == ["found without a fault: local_policy_no_endpoint: Clients ask node node-b."]
    assert finding_truth.compare([other], []).wrong, "printed, and no summary came"


def test_findings_of_single_nodes_are_not_counted() -> None:
    assert finding_truth.compare([finding("mtu"), summary(finding("stale_conntrack"))], []) == FindingCount()


def test_what_a_fault_may_give_beside() -> None:
    lost = ExpectedFinding("lost_between_nodes", ("from node node-b",))
    line = finding("lost_between_nodes", "Packets from node node-b to node node-a are lost")
    assert finding_truth.compare([summary(line)], [], [lost]) == FindingCount()
    assert len(finding_truth.compare([summary(line)], []).wrong) == 1


def test_counts_of_several_runs() -> None:
    total = FindingCount(1, 1, 2, ["a"], [])
    total.add(FindingCount(2, 1, 0, [], ["b"]))
    assert total == FindingCount(3, 2, 2, ["a"], ["b"])
