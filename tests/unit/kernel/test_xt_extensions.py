# SPDX-License-Identifier: Apache-2.0
"""The match and target functions that are watched, and their programs."""

from __future__ import annotations

from pathlib import Path

from tests.support.builders import BtfBuilder
from tracer.kernel import xt_extensions
from tracer.kernel.attach_plan import KernelAbilities
from tracer.kernel.btf import KernelTypes
from tracer.kernel.kallsyms import Symbols

FUNCTIONS = {
    "xt_nat": ("xt_dnat_target_v2",), "xt_statistic": ("statistic_mt",), "xt_nfacct": ("nfacct_mt",),
    "ipt_REJECT": ("reject_tg",), "ip6t_REJECT": ("reject_tg6",),
    "ipt_rpfilter": ("rpfilter_mt",), "ip6t_rpfilter": ("rpfilter_mt",),
}  # fmt: skip
MODERN, OLD = KernelAbilities(True, True), KernelAbilities(True, False)


def planned(directory: Path, can: KernelAbilities, wrong: str = "") -> dict[tuple[str, str], xt_extensions.PlannedExtension]:
    vmlinux = BtfBuilder()
    skb, par = (vmlinux.pointer(vmlinux.struct(n, 8, {})) for n in ("sk_buff", "xt_action_param"))
    (directory / "vmlinux").write_bytes(vmlinux.blob())
    lines = []
    for module, names in FUNCTIONS.items():
        b = BtfBuilder(vmlinux)
        for name in names:
            b.function(name, {"skb": skb, "par": par} if name != wrong else {"par": par, "skb": skb})
            lines.append(f"0000000000000000 t {name}\t[{module}]")
        (directory / module).write_bytes(b.blob())
    found = xt_extensions.plan(KernelTypes(directory), Symbols(lines), can)
    return {(row.module, row.symbol): row for row in found}


def test_fentry_has_two_programs(tmp_path: Path) -> None:
    found = planned(tmp_path, MODERN)
    assert found["xt_nat", "xt_dnat_target_v2"].programs == (("on_target_by_fentry", "FENTRY"),)
    assert found["xt_statistic", "statistic_mt"].programs == (("on_match_by_fexit", "FEXIT"),)
    assert found["xt_nat", "xt_dnat_target_v2"].extensions == (("target", "DNAT", 2, "ip"), ("target", "DNAT", 2, "ip6"))
    assert found["ipt_REJECT", "reject_tg"].extensions == (("target", "REJECT", 0, "ip"),)
    assert found["ip6t_REJECT", "reject_tg6"].extensions == (("target", "REJECT", 0, "ip6"),)


def test_one_program_is_compiled_for_all_functions(tmp_path: Path) -> None:
    text = xt_extensions.header(list(planned(tmp_path, MODERN).values()))
    assert sorted(text.splitlines()) == ["MATCH_FEXIT(on_match_by_fexit)", "TARGET_FENTRY(on_target_by_fentry)"]


def test_revisions_that_share_a_function(tmp_path: Path) -> None:
    """A step of a revision that is not in the plan would be one step too many, and no path through the rules would agree."""
    extensions = planned(tmp_path, MODERN)["xt_nfacct", "nfacct_mt"].extensions
    assert {extension[2] for extension in extensions} == {0, 1} and {extension[:2] for extension in extensions} == {
        ("match", "nfacct")
    }


def test_kprobes_share_three_programs(tmp_path: Path) -> None:
    found = planned(tmp_path, OLD)
    assert {program for row in found.values() for program in row.programs} == {
        ("on_match", "KPROBE"), ("on_match_answer", "KRETPROBE"), ("on_target", "KPROBE"),
    }  # fmt: skip
    text = xt_extensions.header(list(found.values()))
    assert sorted(text.splitlines()) == [
        "MATCH_KPROBE(on_match)", "MATCH_KRETPROBE(on_match_answer)", "TARGET_KPROBE(on_target)",
    ]  # fmt: skip


def test_a_name_that_two_modules_share(tmp_path: Path) -> None:
    """A kprobe could not distinguish them; fentry names the module."""
    found = planned(tmp_path, MODERN)
    assert found["ipt_rpfilter", "rpfilter_mt"].extensions == (("match", "rpfilter", 0, "ip"),)
    assert found["ip6t_rpfilter", "rpfilter_mt"].extensions == (("match", "rpfilter", 0, "ip6"),)
    assert not [key for key in planned(tmp_path, OLD) if key[1] == "rpfilter_mt"]


def test_a_function_with_other_arguments_is_not_watched(tmp_path: Path) -> None:
    assert ("xt_statistic", "statistic_mt") not in planned(tmp_path, MODERN, wrong="statistic_mt")


def test_nothing_loaded(tmp_path: Path) -> None:
    (tmp_path / "vmlinux").write_bytes(BtfBuilder().blob())
    assert xt_extensions.plan(KernelTypes(tmp_path), Symbols([]), MODERN) == []
    assert "MATCH" not in xt_extensions.header([])


def test_each_name_and_revision_once() -> None:
    for kind, text in (("match", xt_extensions.MATCHES), ("target", xt_extensions.TARGETS)):
        named = [extension for _, extension in xt_extensions.rows(kind, text)]
        assert len(named) == len(set(named))
