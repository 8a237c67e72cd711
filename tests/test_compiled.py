"""The programs compile whatever modules a node has loaded: nothing of netfilter, only nftables, only iptables, all."""

from __future__ import annotations

import pytest

from tests import recorded_kernels
from tests.compiling import compiled
from tracer.kernel import acts, headers, plan

ONLY = {
    "nothing": set[str](),
    "nftables": {"nfnetlink", "nf_tables", "nf_conntrack"},
    "iptables": {"x_tables", "ip_tables", "ip6_tables"},
}
CASES = [("5.10", "nothing"), ("6.1", "nothing"), ("7.2", "nothing"), *(("6.12", loaded) for loaded in ONLY)]


@pytest.mark.parametrize(("kernel", "loaded"), CASES)
def test_it_compiles_with_only(kernel: str, loaded: str) -> None:
    data = recorded_kernels.load(kernel)
    modules = {module for homes in data["functions"].values() for module in homes} - {"vmlinux"}
    k = recorded_kernels.kernel(recorded_kernels.without(data, *(modules - ONLY[loaded])))
    can = plan.Abilities(fentry=True, module_fentry=True)
    planned, refused = plan.plan(k.types, k.symbols, can, verbose=True)
    assert {"hook", "drop", "socket"} <= {row.probe.name for row in planned}
    missing = {r.probe.module for r in refused}
    assert missing and missing.isdisjoint({"", *ONLY[loaded]})
    compiled(headers.headers(k.types, k.symbols, planned, acts.plan(k.types, k.symbols, can), 256, 2), "x86")


def test_it_compiles_with_all() -> None:
    k, can = recorded_kernels.kernel(recorded_kernels.load("6.12")), plan.Abilities(fentry=True, module_fentry=True)
    planned, refused = plan.plan(k.types, k.symbols, can, verbose=True)
    assert not refused
    texts = headers.headers(k.types, k.symbols, planned, acts.plan(k.types, k.symbols, can), 256, 2)
    hook = "kretfunc__vmlinux__nf_hook_slow"
    assert len(bytes.fromhex(compiled(texts, "x86", hook)[hook])) > 8 * 500
