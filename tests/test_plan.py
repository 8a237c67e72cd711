"""What is planned on real kernels: their functions and prototypes, in data/symbols, become BTF and kallsyms here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders import BtfBuilder
from tracer import cstruct
from tracer.errors import NoProbe
from tracer.kernel import plan
from tracer.kernel.btf import KernelTypes
from tracer.kernel.plan import Abilities, Planned, Refused
from tracer.kernel.probes import ENTRY, PROBES, RETURN, TRACEPOINT
from tracer.kernel.session import Kernel, choose
from tracer.kernel.symbols import Symbols

DATA = Path(__file__).parent / "data/symbols"
OLD, NEW = Abilities(fentry=True, module_fentry=False), Abilities(fentry=True, module_fentry=True)
NONE = Abilities(fentry=False, module_fentry=False)
STRUCTS = {
    "nf_conn": "nf_conntrack", "xt_table": "x_tables", "nft_pktinfo": "nf_tables", "nft_chain": "nf_tables",
    "nft_table": "nf_tables", "nft_traceinfo": "nf_tables", "nft_verdict": "nf_tables", "nft_base_chain": "nf_tables",
    "xt_table_info": "x_tables", "xt_action_param": "x_tables", "ip_vs_conn": "ip_vs", "ip_vs_service": "ip_vs",
}  # fmt: skip


def described(b: BtfBuilder, text: str) -> tuple[str, int]:
    """Name and type of one parameter in C."""
    if "(" in text:
        return "callback", b.pointer(b.prototype({}))
    found = re.fullmatch(r"(?:const )?(struct |enum )?([\w ]+?) ?(\*?)(\w*)", text.strip())
    assert found, text
    kind, base, pointer, name = found.groups()
    number = 0
    if base != "void":
        number = b.struct(base, 8, {}) if kind == "struct " else b.enum(base, {"NONE": 0}) if kind else b.integer(base, 4)
    return name, b.pointer(number) if pointer else number


def parameters(b: BtfBuilder, prototype: str) -> dict[str, int]:
    inside = prototype[prototype.index("(") + 1 : prototype.rindex(")")]
    return dict(described(b, p) for p in re.split(r",(?![^(]*\))", inside))


def kernel(version: str, directory: Path, in_vmlinux: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> Kernel:
    """A kernel as data/symbols tells of it.

    in_vmlinux: structures that vmlinux's BTF describes, where modules have none. without: modules not loaded, and functions
    that are not there.
    """
    data: dict[str, Any] = json.loads((DATA / f"{version}.json").read_text())
    vmlinux = BtfBuilder()
    for name, types in data["tracepoints"].items():
        named = [f"{t} p".replace("* ", "*") for t in ("void *", *types)]
        numbers = {f" {i}": described(vmlinux, t)[1] for i, t in enumerate(named)}
        vmlinux.typedef("btf_trace_" + name, vmlinux.pointer(vmlinux.prototype(numbers)))
    functions = {n: (m, p) for n, (m, p) in data["functions"].items() if not {n, m} & {*without}}
    for name, (module, prototype) in functions.items():
        if module == "vmlinux":
            vmlinux.function(name, parameters(vmlinux, prototype))
    for name in in_vmlinux:
        vmlinux.struct(name, 64, {})
    (directory / "vmlinux").write_bytes(vmlinux.blob())
    if data["module_btf"]:
        for module in {m for m, _ in functions.values()} | {m for m in STRUCTS.values() if m not in without}:
            b = BtfBuilder(vmlinux)
            for name, (home, prototype) in functions.items():
                if home == module != "vmlinux":
                    b.function(name, parameters(b, prototype))
            for name, home in STRUCTS.items():
                if home == module:
                    b.struct(name, 64, {})
            if module != "vmlinux":
                (directory / module).write_bytes(b.blob())
    lines = [f"0000000000000000 T {n}" + (f"\t[{m}]" if m != "vmlinux" else "") for n, (m, _) in functions.items()]
    return Kernel(KernelTypes(directory), Symbols(lines), data["release"])


def planned(k: Kernel, can: Abilities, verbose: bool = True) -> dict[str, Planned]:
    return {row.probe.name: row for row in plan.plan(k.types, k.symbols, can, verbose)[0]}


def refused(k: Kernel, can: Abilities, verbose: bool = True) -> dict[str, str]:
    return {row.probe.name: row.why for row in plan.plan(k.types, k.symbols, can, verbose)[1]}


POSITIONS = {
    "hook": (1, 2), "table4": (2, 3, 1), "table6": (2, 3, 1), "table4_begin": (2, 1), "table6_begin": (2, 1),
    "table_found": (1, 2), "table_replaced": (1,), "chain": (1, 2), "nat": (1, 2, 3, 4), "nat_hook": (2, 3),
    "unreach4": (1, 2), "unreach6": (2, 3), "reset4": (3,), "reset6": (3,), "socket": (1, 2), "synack4": (7,),
    "synack6": (7,), "syn": (3, 4), "accept4": (1, 2), "accept6": (1, 2), "request": (1, 2), "drop": (1, 2, 3),
    "ipvs_schedule": (1, 2), "ipvs_nat4": (1, 2), "ipvs_nat6": (1, 2), "ipvs_reply": (2, 4, 6), "ipvs_leave": (1, 2),
    "ipvs_in": (2,),
    "cookie4": (1,), "cookie6": (1,), "listener": (3, 4), "time_wait": (1, 2), "answer_reset4": (1, 2, 3),
    "answer_reset6": (1, 2, 3), "neighbour": (1, 2), "no_route": (1,), "table_full": (1,), "confirm": (1,),
    "clone": (1,), "copy": (1,), "pcopy": (1,), "tap": (1,), "tap_ring": (1,),
}  # fmt: skip
"""Where the arguments are since 5.16, by row."""
NFT_RULE = {"6.1": (1, 0, 0, 0, 3), "6.12": (4, 1, 2, 3, 5)}
"""The trace info held packet, verdict and rule until 6.4."""


@pytest.mark.parametrize("version", ["6.1", "6.12"])
def test_every_row_runs(version: str, tmp_path: Path) -> None:
    k = kernel(version, tmp_path)
    positions = {**POSITIONS, "nft_rule": NFT_RULE[version]}
    if version == "6.1":  # a reset has no reason there
        positions |= {"answer_reset4": (1, 2, 0), "answer_reset6": (1, 2, 0)}
    assert {name: row.positions for name, row in planned(k, NEW).items()} == positions
    assert refused(k, NEW) == {}
    assert not any(row.assumed for row in planned(k, NEW).values())


def test_7_2_finds_what_it_has(tmp_path: Path) -> None:
    """The table tells of twelve functions of that kernel; the others are refused by name."""
    k = kernel("7.2", tmp_path)
    found = planned(k, NEW)
    assert {name: row.positions for name, row in found.items()} == {n: POSITIONS[n] for n in found}
    assert {"hook", "table4", "chain", "nat", "nat_hook", "syn", "accept4", "request", "drop", "clone"} <= set(found)
    assert refused(k, NEW)["socket"] == "the kernel has no function sk_filter_trim_cap"
    assert refused(k, NEW)["unreach4"] == "module nf_reject_ipv4 is not loaded"
    assert (found["accept4"].way, found["request"].way) == ("KRETPROBE", "FEXIT"), "seven arguments and six"


def test_5_10_modules_have_no_btf(tmp_path: Path) -> None:
    """The table was the third argument then; without BTF that is taken on trust, and said so."""
    found = planned(kernel("5.10", tmp_path, ("nf_conn", "xt_table")), NEW)
    assert (found["table4"].positions, found["table4"].way) == ((1, 2, 3), "KRETPROBE")
    assert (found["nat"].positions, found["nat"].way) == ((1, 2, 3, 4), "KPROBE")
    assert {name for name, row in found.items() if row.assumed} == {
        "table4", "table6", "table_found", "table_replaced", "nat", "nat_hook", "table_full", "confirm",
    }  # fmt: skip
    assert (found["nat_hook"].positions, found["nat_hook"].symbol) == ((2, 3), "nf_nat_inet_fn")
    assert (found["hook"].way, found["hook"].assumed) == ("FEXIT", False)
    assert found["drop"].positions == (1, 2, 0), "no drop reasons before 5.17"


@pytest.mark.parametrize("version", ["5.10", "6.12"])
def test_positions_of_5_10_are_trusted_on_that_kernel_only(version: str, tmp_path: Path) -> None:
    """Where some module is described, or the kernel is later, a module without BTF is not known."""
    k = kernel(version, tmp_path, ("nf_conn", "xt_table"))
    if version == "5.10":
        (tmp_path / "some_module").write_bytes(BtfBuilder(BtfBuilder()).blob())
    else:
        for path in tmp_path.iterdir():
            if path.name != "vmlinux":
                path.unlink()
    for can in (NEW, NONE):
        why = refused(k, can)
        assert why["table4"] == why["nat"] == why["nat_hook"] == "its arguments are not where this program knows to find them"
        assert not any(row.assumed for row in planned(k, can).values())
        assert "hook" not in why


def test_5_10_without_the_structures_of_modules(tmp_path: Path) -> None:
    why = refused(kernel("5.10", tmp_path), NEW)
    assert why["table4"] == "struct xt_table is not described by BTF (before 5.11 modules have none)"
    assert why["chain"] == "struct nft_chain is not described by BTF (before 5.11 modules have none)", "its parts have no size"
    assert "nf_conn" in why["nat"]
    assert "drop" not in why


WAYS_OLD = {
    "hook": "FEXIT", "table4": "KRETPROBE", "nat": "KPROBE", "socket": "FENTRY", "drop": "RAWTP", "syn": "FEXIT",
    "synack4": "KPROBE", "clone": "FEXIT", "unreach4": "KPROBE",
}  # fmt: skip
WAYS_NEW = {**WAYS_OLD, "table4": "FEXIT", "nat": "FENTRY", "unreach4": "FENTRY"}
WAYS_NONE = {name: {"FEXIT": "KRETPROBE", "FENTRY": "KPROBE"}.get(way, way) for name, way in WAYS_NEW.items()}


@pytest.mark.parametrize(("can", "ways"), [(OLD, WAYS_OLD), (NEW, WAYS_NEW), (NONE, WAYS_NONE)])
def test_ways(can: Abilities, ways: dict[str, str], tmp_path: Path) -> None:
    found = planned(kernel("6.12", tmp_path), can)
    assert {name: found[name].way for name in ways} == ways


def test_a_seventh_argument_needs_a_kprobe(tmp_path: Path) -> None:
    """Debian's 6.1 has opt_child_init in tcp_v4_syn_recv_sock, its 6.12 has not."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with_seven, with_six = kernel("6.1", tmp_path / "a"), kernel("6.12", tmp_path / "b")
    rows = [planned(k, NEW)["accept4"] for k in (with_seven, with_six)]
    assert [(row.way, row.parameters) for row in rows] == [("KRETPROBE", 7), ("FEXIT", 6)]


def test_program_names_are_what_bcc_wants(tmp_path: Path) -> None:
    k = kernel("6.12", tmp_path)
    assert planned(k, NEW)["hook"].program == "kretfunc__vmlinux__nf_hook_slow"
    assert planned(k, OLD)["hook"].program == "kretfunc__nf_hook_slow"
    assert planned(k, NEW)["nat"].program == "kfunc__nf_nat__nf_nat_manip_pkt"
    assert planned(k, OLD)["nat"].program == "on_nat"
    assert planned(k, OLD)["drop"].program == "raw_tracepoint__kfree_skb"


def test_rows_of_missing_modules_are_refused_one_by_one(tmp_path: Path) -> None:
    why = refused(kernel("6.12", tmp_path, without=("nf_nat", "ip_tables")), NEW)
    assert why == {
        "table4": "module ip_tables is not loaded",
        "table4_begin": "module ip_tables is not loaded",
        "nat": "module nf_nat is not loaded",
        "nat_hook": "module nf_nat is not loaded",
    }


def test_a_loaded_module_without_the_function_is_told_apart(tmp_path: Path) -> None:
    k = kernel("6.12", tmp_path, without=("nf_nat_manip_pkt", "skb_clone", "ip_tables"))
    assert refused(k, NEW) == {
        "table4": "module ip_tables is not loaded",
        "table4_begin": "module ip_tables is not loaded",
        "nat": "nf_nat has no function nf_nat_manip_pkt",
        "clone": "the kernel has no function skb_clone",
    }


def test_verbose_rows_only_when_asked(tmp_path: Path) -> None:
    k = kernel("6.12", tmp_path)
    assert set(planned(k, NEW, verbose=True)) - set(planned(k, NEW, verbose=False)) == {"nat_hook"}
    assert refused(k, NEW, verbose=False) == {}


def test_arguments_that_moved_out_of_sight(tmp_path: Path) -> None:
    b = BtfBuilder()
    b.function("nf_hook_slow", {"ctx": b.pointer(b.struct("nf_hook_ctx", 8, {}))})
    (tmp_path / "vmlinux").write_bytes(b.blob())
    k = Kernel(KernelTypes(tmp_path), Symbols(["0 T nf_hook_slow"]), "99.0")
    assert refused(k, NEW)["hook"] == "its arguments are not where this program knows to find them"
    with pytest.raises(NoProbe) as e:
        choose(k, NEW, verbose=False)
    assert str(e.value).startswith("Tracing cannot go without netfilter hooks and their verdicts, and its arguments")


def test_kprobe_only_when_asked(tmp_path: Path) -> None:
    rows, _ = choose(kernel("6.12", tmp_path), NEW, verbose=True, only="kprobe")
    assert {row.way for row in rows} == {"KPROBE", "KRETPROBE", "RAWTP"}


def test_header(tmp_path: Path) -> None:
    k = kernel("6.12", tmp_path, without=("nf_nat",))
    rows, _ = plan.plan(k.types, k.symbols, NEW, verbose=False)
    lines = plan.header(rows, 4096, 2).splitlines()
    assert lines[:2] == ["#define RING_PAGES 4096", "#define CPUS 2"]
    assert "#define WAY_hook FEXIT" in lines
    assert "#define PROGRAM_hook kretfunc__vmlinux__nf_hook_slow" in lines
    assert "#define ARGS_table4(GET, ctx) { GET(ctx, 2), GET(ctx, 3), GET(ctx, 1) }" in lines
    assert "#define RETURN_hook 5" in lines, "the return value stands behind four arguments"
    assert "#define WAY_nat OFF" in lines
    assert not any(line.startswith("#define PROGRAM_nat ") for line in lines)
    assert "#define SYNACK_SEEN 1" in lines
    assert "#define DROP_REASONS" in lines
    numbers = [line.split()[1:] for line in lines if line.startswith("#define NUMBER_")]
    assert numbers == [[f"NUMBER_{p.name}", str(i)] for i, p in enumerate(PROBES)]


def test_header_of_an_old_kernel(tmp_path: Path) -> None:
    k = kernel("5.10", tmp_path)
    rows, _ = plan.plan(k.types, k.symbols, NONE, verbose=False)
    text = plan.header([r for r in rows if r.probe.name != "synack4"], 8, 2)
    assert "#define ARGS_drop(GET, ctx) { GET(ctx, 1), GET(ctx, 2), 0 }\n" in text
    assert "DROP_REASONS" not in text
    assert "#define SYNACK_SEEN 0\n" in text


def test_the_table_itself() -> None:
    names = [p.name for p in PROBES]
    assert len(set(names)) == len(names) <= cstruct.define("tally.h", "TALLY_ROWS"), "there are sights and counters for so many"
    assert {p.at for p in PROBES} == {ENTRY, RETURN, TRACEPOINT}
    assert {p.name for p in PROBES if p.needed} == {"hook", "drop"}
    for p in PROBES:
        assert not p.fallback or len(p.fallback) == len(p.args), p.name
        assert bool(p.fallback) == bool(p.module), f"{p.name}: only modules may lack BTF"
    assert [row.number for row in (Planned(p, "", "", "", (), 0, "") for p in PROBES)] == list(range(len(PROBES)))
    assert Refused(PROBES[0], "x").probe is PROBES[0]
