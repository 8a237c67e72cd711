"""The programs compile whatever modules a node has loaded: nothing of netfilter, only nftables, only iptables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel.watching import Watch
from tracer.kernel import acts, headers, plan
from tracer.kernel.btf import SYS_BTF, KernelTypes
from tracer.kernel.program import Program, abilities, load_bcc
from tracer.kernel.symbols import Symbols

ONLY = {
    "nothing": (),
    "nftables": ("nfnetlink", "nf_tables", "nf_conntrack"),
    "iptables": ("x_tables", "ip_tables", "ip6_tables"),
}


@pytest.mark.parametrize(
    "loaded", [name if name == "nothing" else pytest.param(name, marks=pytest.mark.thorough) for name in ONLY]
)
def test_it_compiles_with_only(watch: Watch, loaded: str, tmp_path: Path) -> None:
    """The watched kernel has all of them by now, so what such a node would show of itself is made of it."""
    btf = tmp_path / "btf"
    btf.mkdir()
    for name in ("vmlinux", *ONLY[loaded]):
        (btf / name).symlink_to(SYS_BTF / name)
    with Path("/proc/kallsyms").open() as symbols:
        kept = [s for s in symbols if "[" not in s or s.split("[")[1].rstrip("]\n") in ONLY[loaded]]
    (tmp_path / "kallsyms").write_text("".join(kept))
    types, known, bcc = KernelTypes(btf), Symbols.running(tmp_path / "kallsyms"), load_bcc()
    can = abilities(bcc)
    planned, refused = plan.plan(types, known, can, verbose=True)
    assert {"hook", "drop", "socket"} <= {row.probe.name for row in planned}
    missing = {r.probe.module for r in refused}
    assert missing and missing.isdisjoint({"", *ONLY[loaded]})
    Program(bcc, headers.headers(types, known, planned, acts.plan(types, known, can), 256, 2)).close()
