# SPDX-License-Identifier: Apache-2.0
"""Plans for real kernels, as they were recorded (tests/support/recorded_kernels.py), and for changed copies of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import recorded_kernels
from tests.support.builders import BtfBuilder
from tracer.errors import NoProbe
from tracer.events import bpf_source, cstruct
from tracer.kernel import attach_plan, xt_extensions
from tracer.kernel.attach_plan import KernelAbilities, PlannedProbe, UnavailableProbe
from tracer.kernel.btf import KernelTypes
from tracer.kernel.bytecode import call_number, load_constant
from tracer.kernel.kallsyms import Symbols
from tracer.kernel.probes import ENTRY, PROBES, RETURN, TRACEPOINT
from tracer.kernel.session import Kernel, choose

OLD, NEW = KernelAbilities(fentry=True, module_fentry=False), KernelAbilities(fentry=True, module_fentry=True)
NONE = KernelAbilities(fentry=False, module_fentry=False)


def kernel(version: str, without: tuple[str, ...] = ()) -> Kernel:
    """A recorded kernel. without: modules that are not loaded, and functions and structures that do not exist."""
    return recorded_kernels.kernel(recorded_kernels.without(recorded_kernels.load(version), *without))


def planned(k: Kernel, can: KernelAbilities, verbose: bool = True, programs: bool = True) -> dict[str, PlannedProbe]:
    found = attach_plan.plan(k.types, k.symbols, can, verbose, lookups=True, programs=programs)[0]
    return {row.probe.name: row for row in found}


def refused(k: Kernel, can: KernelAbilities, verbose: bool = True) -> dict[str, str]:
    found = attach_plan.plan(k.types, k.symbols, can, verbose, lookups=True, programs=True)[1]
    return {row.probe.name: row.why for row in found}


POSITIONS = {
    "hook": (1, 2), "table4": (2, 3, 1), "table6": (2, 3, 1), "table4_begin": (2, 1), "table6_begin": (2, 1),
    "table_found": (1, 2), "table_replaced": (1,), "chain": (1, 2), "nat": (1, 2, 3, 4), "nat_hook": (2, 3),
    "nft_fwd": (3,), "nft_fwd_to": (3,),
    "unreach4": (1, 2), "unreach6": (2, 3), "reset4": (3, 0), "reset6": (3, 0), "socket": (1, 2), "synack4": (7,),
    "synack6": (7,), "syn": (3, 4), "accept4": (1, 2, 6), "accept6": (1, 2, 6), "request": (1, 2, 5), "drop": (1, 2, 3),
    "ipvs_schedule": (1, 2), "ipvs_nat4": (1, 2), "ipvs_nat6": (1, 2), "ipvs_reply": (2, 4, 6), "ipvs_leave": (1, 2),
    "ipvs_in": (2,),
    "cookie4": (1,), "cookie6": (1,), "listener": (3, 4), "time_wait": (1, 2), "answer_reset4": (1, 2, 3),
    "answer_reset6": (1, 2, 3), "neighbour": (1, 2), "no_route": (1,), "table_full": (1,), "confirm": (1,),
    "clone": (1,), "copy": (1,), "pcopy": (1,), "tap": (1,), "tap_ring": (1,), "arrival": (1,), "hook_begin": (1, 2),
    "transmit": (1,), "outgoing": (1,), "redirect": (1,), "clone_redirect": (1, 2, 3), "xdp_redirect": (2, 4),
}  # fmt: skip
"""Positions of the arguments since 5.16, by row. A row that is not here is only compared with the recorded types."""
INLINED = {f"lookup{n}": f"the kernel has no function inet{n.replace('4', '')}_lookup_run_sk_lookup" for n in ("4", "6")}
"""Until 6.6 the compiler puts these into their callers."""
NFT_RULE = {"6.1": (1, 0, 0, 0, 3), "6.12": (4, 1, 2, 3, 5), "7.2": (4, 1, 2, 3, 5)}
"""The trace info held packet, verdict and rule until 6.4."""


def listed(rows: dict[str, PlannedProbe]) -> dict[str, tuple[int, ...]]:
    """The positions of the rows that POSITIONS or NFT_RULE has."""
    return {name: row.positions for name, row in rows.items() if name in POSITIONS or name == "nft_rule"}


@pytest.mark.parametrize("version", ["5.10", "6.1", "6.12", "7.2"])
def test_every_argument_has_the_type_that_its_row_asks_for(version: str) -> None:
    data = recorded_kernels.load(version)
    rows = [row for row in planned(recorded_kernels.kernel(data), NEW).values() if row.probe.at != TRACEPOINT]
    compared = 0
    for row in rows:
        kinds = data["functions"][row.symbol][row.probe.module or "vmlinux"]
        for place, asked in zip(row.positions, row.probe.args, strict=True) if kinds else ():
            alternatives = [kind.partition("#")[0] for kind in asked.split("|")]
            assert (kinds[place - 1] if place else "") in alternatives, f"{row.probe.name}: argument {asked} at {place}"
            compared += 1
    assert compared >= 20


@pytest.mark.parametrize("version", ["6.1", "6.12", "7.2"])
def test_every_row_runs(version: str) -> None:
    k = kernel(version)
    positions = {**POSITIONS, "nft_rule": NFT_RULE[version]}
    if version == "6.1":  # a reset has no reason there
        positions |= {"answer_reset4": (1, 2, 0), "answer_reset6": (1, 2, 0)}
    inlined = INLINED if version == "6.1" else {}
    assert listed(planned(k, NEW)) == positions
    assert {*planned(k, NEW)} == {probe.name for probe in PROBES} - {*inlined}
    assert refused(k, NEW) == inlined
    assert not any(row.assumed for row in planned(k, NEW).values())


def test_5_10_describes_no_module() -> None:
    """There the table was the third argument; structures without BTF come from built-in layouts, and are marked as assumed."""
    k = kernel("5.10")
    found = planned(k, NEW)
    before_5_16 = {
        "table4": (1, 2, 3),
        "table6": (1, 2, 3),
        "table4_begin": (1, 3),
        "table6_begin": (1, 3),
        "nft_rule": (1, 0, 0, 0, 3),
    }
    resets = {"reset4": (2, 3), "reset6": (2, 3), "answer_reset4": (1, 2, 0), "answer_reset6": (1, 2, 0)}
    no_reasons = {"drop": (1, 2, 0)}
    expected = {**POSITIONS, **before_5_16, **resets, **no_reasons}
    assert listed(found) == {n: p for n, p in expected.items() if not n.startswith("ipvs_")}
    assert {n: why for n, why in refused(k, NEW).items() if n != "ipvs_in"} == INLINED | {
        n: "struct ip_vs_conn is not described by BTF (before 5.11 modules have none)"
        for n in ("ipvs_schedule", "ipvs_nat4", "ipvs_nat6", "ipvs_reply", "ipvs_leave")
    }
    assert {n for n, row in found.items() if row.assumed} == {n for n, row in found.items() if row.probe.module}
    assert (found["table4"].way, found["nat"].way, found["hook"].way) == ("KRETPROBE", "KPROBE", "FEXIT")
    assert found["nat_hook"].symbol == "nf_nat_inet_fn"


@pytest.mark.parametrize("version", ["5.10", "6.12"])
def test_built_in_layouts_of_5_10_are_used_on_that_kernel_only(version: str) -> None:
    """If any module has BTF, or the kernel is later, a module without BTF is not known."""
    data = recorded_kernels.load(version)
    if version == "5.10":
        data["modules described"] = True
        data["functions"]["some_function"] = {"some_module": []}
    else:
        data["modules described"] = False
    k = recorded_kernels.kernel(data)
    for can in (NEW, NONE):
        why = refused(k, can)
        assert {"table4", "chain", "nat", "nat_hook"} <= why.keys()
        assert not any(row.assumed for row in planned(k, can).values())
        assert xt_extensions.plan(k.types, k.symbols, can) == []
        assert "hook" not in why


def test_5_10_with_other_build_options() -> None:
    """A built-in layout is used only if the sizes of its parts agree with its offsets."""
    data = recorded_kernels.load("5.10")
    data["structures"]["rhltable"][1] += 64
    why = refused(recorded_kernels.kernel(data), NEW)
    assert why["chain"] == why["nft_rule"] == "struct nft_table is not described by BTF (before 5.11 modules have none)"
    assert "table4_begin" not in why


WAYS_OLD = {
    "hook": "FEXIT", "table4": "KRETPROBE", "nat": "KPROBE", "socket": "FENTRY", "drop": "BTFTP", "syn": "FEXIT",
    "synack4": "KPROBE", "clone": "FEXIT", "unreach4": "KPROBE",
}  # fmt: skip
WAYS_NEW = {**WAYS_OLD, "table4": "FEXIT", "nat": "FENTRY", "unreach4": "FENTRY"}
WAYS_NONE = {name: {"FEXIT": "KRETPROBE", "FENTRY": "KPROBE", "BTFTP": "RAWTP"}.get(way, way) for name, way in WAYS_NEW.items()}


@pytest.mark.parametrize(("can", "ways"), [(OLD, WAYS_OLD), (NEW, WAYS_NEW), (NONE, WAYS_NONE)])
def test_ways_to_attach(can: KernelAbilities, ways: dict[str, str]) -> None:
    found = planned(kernel("6.12"), can)
    assert {name: found[name].way for name in ways} == ways


def test_a_seventh_argument_needs_a_kprobe() -> None:
    """Debian's 6.1 has opt_child_init in tcp_v4_syn_recv_sock, its 6.12 has not."""
    with_seven, with_six = kernel("6.1"), kernel("6.12")
    rows = [planned(k, NEW)["accept4"] for k in (with_seven, with_six)]
    assert [(row.way, row.parameters) for row in rows] == [("KRETPROBE", 7), ("FEXIT", 6)]


def test_rows_with_the_same_code_share_a_program() -> None:
    rows = planned(kernel("6.12"), NEW)
    assert rows["hook"].program == "on_hook"
    assert rows["table6"].program == rows["table4"].program == "on_table4"
    assert rows["reset4"].program == "on_reset4"
    assert rows["unreach6"].positions != rows["unreach4"].positions and rows["unreach6"].program == "on_unreach6"


def test_a_row_without_the_other_has_its_own_program() -> None:
    rows = planned(kernel("6.12", without=("ip_tables",)), NEW)
    assert rows["table6"].program == "on_table6"


def test_rows_that_share_a_program_have_one_function_in_c() -> None:
    """`like` in the probe table says what a #define in bpf/ makes true."""
    text = "\n".join(path.read_text() for path in (bpf_source.directory() / "probes").iterdir())
    aliases = dict(re.findall(r"^#define (\w+_(?:entered|returned|keep)) (\w+)$", text, re.M))
    for probe in PROBES:
        for end in ("entered",) if probe.at == ENTRY else ("returned", "keep") if probe.like else ():
            if probe.like:
                own, other = f"{probe.name}_{end}", f"{probe.like}_{end}"
                assert aliases.get(own) == aliases.get(other, other), own


def test_rows_of_missing_modules_are_refused_one_by_one() -> None:
    why = refused(kernel("6.12", without=("nf_nat", "ip_tables")), NEW)
    assert why == {
        "table4": "module ip_tables is not loaded",
        "table4_begin": "module ip_tables is not loaded",
        "nat": "module nf_nat is not loaded",
        "nat_hook": "module nf_nat is not loaded",
    }


def test_a_loaded_module_without_the_function_has_another_reason() -> None:
    k = kernel("6.12", without=("nf_nat_manip_pkt", "skb_clone", "ip_tables"))
    assert refused(k, NEW) == {
        "table4": "module ip_tables is not loaded",
        "table4_begin": "module ip_tables is not loaded",
        "nat": "nf_nat has no function nf_nat_manip_pkt",
        "clone": "the kernel has no function skb_clone",
    }


def test_verbose_rows_only_when_requested() -> None:
    k = kernel("6.12")
    assert set(planned(k, NEW, verbose=True)) - set(planned(k, NEW, verbose=False)) == {"nat_hook"}
    assert refused(k, NEW, verbose=False) == {}


def test_rows_of_programs_only_where_there_are_some() -> None:
    """A node without eBPF programs at interfaces has not one probe, nor one instruction, more."""
    k = kernel("6.12")
    more = {p.name for p in PROBES if p.programs}
    assert set(planned(k, NEW)) - set(planned(k, NEW, programs=False)) == more and len(more) == 7
    assert not {row.probe.name for row in choose(k, NEW, verbose=True)[0]} & more
    assert {row.probe.name for row in choose(k, NEW, verbose=True, programs=True)[0]} >= more
    for has_programs in (True, False):
        rows, _ = attach_plan.plan(k.types, k.symbols, NEW, verbose=True, programs=has_programs)
        assert ("#define WATCHES_PROGRAMS\n" in attach_plan.header(rows, 8, 2)) is has_programs


def test_arguments_that_are_numbers_are_no_typed_pointers() -> None:
    rows = planned(kernel("6.12"), NEW)
    assert rows["clone_redirect"].way == "FENTRY" and not rows["clone_redirect"].is_direct and rows["redirect"].is_direct
    assert "#define DIRECT_clone_redirect 0\n" in attach_plan.header(list(rows.values()), 8, 2)
    assert "#define COPIED_FUNCTIONS" in attach_plan.functions(list(rows.values()))


def test_arguments_at_unknown_positions_are_refused(tmp_path: Path) -> None:
    b = BtfBuilder()
    b.function("nf_hook_slow", {"ctx": b.pointer(b.struct("nf_hook_ctx", 8, {}))})
    (tmp_path / "vmlinux").write_bytes(b.blob())
    k = Kernel(KernelTypes(tmp_path), Symbols(["0 T nf_hook_slow"]), "99.0")
    assert refused(k, NEW)["hook"] == "the positions of its arguments are not known"
    with pytest.raises(NoProbe) as e:
        choose(k, NEW, verbose=False)
    assert str(e.value).startswith("Tracing needs netfilter hooks and their verdicts, but the positions")


def test_kprobe_only_when_requested() -> None:
    rows, _ = choose(kernel("6.12"), NEW, verbose=True, only="kprobe")
    assert {row.way for row in rows} == {"KPROBE", "KRETPROBE", "RAWTP"}


def test_header() -> None:
    k = kernel("6.12", without=("nf_nat",))
    rows, _ = attach_plan.plan(k.types, k.symbols, NEW, verbose=False)
    lines = attach_plan.header(rows, 4096, 2).splitlines()
    assert lines[:2] == ["#define RING_PAGES 4096", "#define CPUS 2"]
    assert "#define WAY_hook FEXIT" in lines
    assert "#define PROGRAM_hook on_hook" in lines
    assert "#define ARGS_table4(GET, ctx) { GET(ctx, 2), GET(ctx, 3), GET(ctx, 1) }" in lines
    assert "#define ARGS_request(GET, ctx) { GET(ctx, 1), GET(ctx, 2), GET##_OF_NUMBER(ctx, 5) }" in lines
    assert "#define RETURN_hook 5" in lines, "the return value comes after four arguments"
    assert "#define WAY_nat OFF" in lines
    assert not any(line.startswith("#define PROGRAM_nat ") for line in lines)
    assert "#define SYNACK_SEEN 1" in lines
    assert "#define QUEUE_CALLERS_SEEN 1" in lines
    row = next(number for number, probe in enumerate(PROBES) if probe.name == "queue_verdict")
    assert f"#define ROW_queue_verdict {row}" in lines
    without = attach_plan.header([row for row in rows if row.probe.name != "queue_device"], 4096, 2)
    assert "#define QUEUE_CALLERS_SEEN 0\n" in without
    assert "#define DROP_REASONS" in lines
    numbers = dict(line.split()[1:] for line in lines if line.startswith("#define NUMBER_"))
    shared = f"load_constant({load_constant('row'):#x}ULL)"
    assert "#define WAY_table6 OFF" in lines and "NUMBER_table6" not in numbers and numbers["NUMBER_table4"] == shared
    assert {n: v for n, v in numbers.items() if v != shared}.items() <= {
        f"NUMBER_{p.name}": f"{i}" for i, p in enumerate(PROBES)
    }.items()


def test_functions_are_copied_for_the_ways_that_the_rows_have() -> None:
    k = kernel("6.12")
    rows, _ = attach_plan.plan(k.types, k.symbols, NEW, verbose=False)
    fexit = attach_plan.functions([row for row in rows if row.way == "FEXIT"]).splitlines()
    assert fexit[0] == "#define DIRECT_FUNCTIONS" and "#define COPIED_FUNCTIONS" not in fexit
    assert f"#define CALL_parse_header_direct {call_number('parse_header_direct'):#x}ULL" in fexit
    assert attach_plan.functions(rows).splitlines()[0] == "#define DIRECT_FUNCTIONS"
    assert "COPIED_FUNCTIONS" not in attach_plan.functions(rows), "SYN-ACKs are watched by kprobe, and call no function"
    old, _ = attach_plan.plan(k.types, k.symbols, OLD, verbose=False)
    assert attach_plan.functions(old).splitlines()[:2] == ["#define DIRECT_FUNCTIONS", "#define COPIED_FUNCTIONS"]


def test_sk_lookup_is_only_watched_if_it_is_used() -> None:
    k = kernel("6.12")
    rows, refused_rows = attach_plan.plan(k.types, k.symbols, NEW, verbose=True)
    names = {row.probe.name for row in rows} | {row.probe.name for row in refused_rows}
    assert "socket" in names and not {"lookup4", "lookup6"} & names
    found = planned(k, NEW)
    assert {(found[n].way, found[n].positions, found[n].program) for n in ("lookup4", "lookup6")} == {
        ("KRETPROBE", (3,), "on_lookup4")
    }
    assert attach_plan.functions([*found.values()]).splitlines()[:2] == ["#define DIRECT_FUNCTIONS", "#define COPIED_FUNCTIONS"]


def test_header_of_an_old_kernel() -> None:
    k = kernel("5.10")
    rows, _ = attach_plan.plan(k.types, k.symbols, NONE, verbose=False)
    text = attach_plan.header([r for r in rows if r.probe.name != "synack4"], 8, 2)
    assert "#define ARGS_drop(GET, ctx) { GET(ctx, 1), GET(ctx, 2), 0 }\n" in text
    assert "DROP_REASONS" not in text
    assert "#define SYNACK_SEEN 0\n" in text


def test_the_table_of_probes() -> None:
    names = [p.name for p in PROBES]
    assert len(set(names)) == len(names) <= cstruct.define("records/loss_counters.h", "COUNTER_ROWS"), (
        "there is one row of observations and counters for each probe"
    )
    assert {p.at for p in PROBES} == {ENTRY, RETURN, TRACEPOINT}
    assert {p.name for p in PROBES if p.needed} == {"hook", "drop"}
    for p in PROBES:
        assert not p.fallback or len(p.fallback) == len(p.args), p.name
        assert bool(p.fallback) == bool(p.module), f"{p.name}: only modules may lack BTF"
    assert [row.number for row in (PlannedProbe(p, "", "", "", (), 0, "") for p in PROBES)] == list(range(len(PROBES)))
    assert UnavailableProbe(PROBES[0], "x").probe is PROBES[0]
