# SPDX-License-Identifier: Apache-2.0
"""docs/matrix.md from the results of kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import matrix_table


def kernel(name: str, failed: int = 0, **facts: Any) -> dict[str, Any]:
    return {
        "kernel": name, "release": f"{name}.0-cloud", "bcc": "0.31.0", "numpy": "2", "seconds": 90.0,
        "tests": {"Rules": [3, failed, 1], "SYNs": [2, 0, 0]}, "again": ["c::d"], "skipped": {},
        "failed": {f"a::{number}": "Rules" for number in range(failed)},
        "died_during": [], "ended": True,
        "facts": {"probes": {"drops": "RAWTP"}, "refused": {}, "watched": 136} | facts,
        "reported": {"legacy": {"rule": "observed"}, "nftables": {"rule": "derived"}},
    }  # fmt: skip


def test_a_column_for_each_kernel() -> None:
    old = kernel("5.10", probes={"drops": "RAWTP", "tables": "KRETPROBE *"}, refused={"IPVS": "no BTF"})
    old["tests"]["IPVS"], old["skipped"] = [0, 0, 2], {"IPVS": "nothing to see"}
    page = matrix_table.page([old, kernel("6.12", probes={"drops": "BTFTP", "tables": "FEXIT", "IPVS": "FENTRY"})])
    assert "|  | 5.10 | 6.12 |\n|---|---|---|\n| release | 5.10.0-cloud | 6.12.0-cloud |\n" in page
    assert "| drops | tracepoint | tracepoint |\n| tables | kretprobe * | fexit |\n| IPVS | - | fentry |\n" in page
    assert "- 5.10: IPVS: no BTF\n" in page
    assert "| nftables | 5.10 | 6.12 |\n|---|---|---|\n| rule | derived | derived |\n" in page
    assert "| Rules | 3 of 3 | 3 of 3 |\n| SYNs | 2 of 2 | 2 of 2 |\n" in page
    assert "| IPVS | - | - |\n" in page and page.endswith("\n\n- 5.10: IPVS: nothing to see\n")
    assert "| tests passed | 5 | 5 |\n| tests failed | 0 | 0 |\n| of those passed, at the second try | 1 | 1 |\n" in page
    assert "| minutes, in emulation | 1.5 | 1.5 |\n" in page


@pytest.mark.parametrize(
    ("failed", "silent", "status", "last"),
    [
        (0, False, 0, "kernels=2 passed=10 failed=0"),
        (2, False, 1, "kernels=2 passed=10 failed=2"),
        (0, True, 1, "kernels=1 passed=5 failed=1"),
    ],
)
def test_the_last_line(
    failed: int, silent: bool, status: int, last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("5.10", "6.1")[: 2 - silent]:
        (tmp_path / f"{name}.json").write_text(json.dumps(kernel(name, failed if name == "5.10" else 0)))
    assert matrix_table.main([str(tmp_path), str(tmp_path / "matrix.md"), "5.10", "6.1"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == last
    assert ("6.1: the machine ended before the tests did" in lines) == silent
    assert lines.count("5.10: a::0 failed") == (failed > 0)
    assert (tmp_path / "matrix.md").read_text().startswith("# What is reported on which kernel\n")
    assert ("- 5.10: `a::0` failed\n" in (tmp_path / "matrix.md").read_text()) == (failed > 0)
