# SPDX-License-Identifier: Apache-2.0
"""The programs compile with any set of loaded modules: none of netfilter, only nftables, only iptables, all."""

from __future__ import annotations

import pytest

from tests.support import recorded_kernels
from tests.support.compiling import compiled
from tests.support.recorded_kernels import Data
from tracer.kernel import attach_plan, generated_headers, xt_extensions
from tracer.kernel.attach_plan import PlannedProbe, UnavailableProbe

ONLY = {
    "nothing": set[str](),
    "nftables": {"nfnetlink", "nf_tables", "nf_conntrack"},
    "iptables": {"x_tables", "ip_tables", "ip6_tables"},
}
CASES = [("5.10", "nothing"), ("6.1", "nothing"), ("7.2", "nothing"), *(("6.12", loaded) for loaded in ONLY)]


CAN = attach_plan.KernelAbilities(fentry=True, module_fentry=True)


def planned(data: Data) -> tuple[list[PlannedProbe], list[UnavailableProbe], dict[str, str]]:
    """The rows that run on a recorded kernel, the rows that do not run, and the generated headers."""
    k = recorded_kernels.kernel(data)
    rows, refused = attach_plan.plan(k.types, k.symbols, CAN, verbose=True)
    return (
        rows,
        refused,
        generated_headers.headers(k.types, k.symbols, rows, xt_extensions.plan(k.types, k.symbols, CAN), 256, 2),
    )


@pytest.mark.parametrize(("kernel", "loaded"), CASES)
def test_it_compiles_with_only(kernel: str, loaded: str) -> None:
    data = recorded_kernels.load(kernel)
    modules = {module for homes in data["functions"].values() for module in homes} - {"vmlinux"}
    rows, refused, texts = planned(recorded_kernels.without(data, *(modules - ONLY[loaded])))
    assert {"hook", "drop", "socket"} <= {row.probe.name for row in rows}
    missing = {r.probe.module for r in refused}
    assert missing and missing.isdisjoint({"", *ONLY[loaded]})
    compiled(texts, "x86")


def test_it_compiles_with_all() -> None:
    _, refused, texts = planned(recorded_kernels.load("6.12"))
    assert not refused
    hook = "on_hook"
    assert len(bytes.fromhex(compiled(texts, "x86", hook)[hook])) > 8 * 500
