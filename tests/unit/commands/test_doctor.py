# SPDX-License-Identifier: Apache-2.0
"""The results of doctor, for machines simulated with directories and kernels simulated with dictionaries."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from tracer.commands import doctor
from tracer.errors import NoBcc, NoBtf
from tracer.kernel import bpf_syscall, cache_directory
from tracer.kernel.attach_plan import KernelAbilities
from tracer.kernel.bcc_library import BccLibrary
from tracer.kernel.bpf_syscall import NetnsLink
from tracer.kernel.btf import KernelTypes
from tracer.kernel.kallsyms import Symbols
from tracer.kernel.module_layouts_5_10 import BuiltinLayouts
from tracer.kernel.probes import PROBES, TRACEPOINT
from tracer.kernel.session import Kernel
from tracer.model.check import CheckResult
from tracer.node.capabilities import BITS, LOSES
from tracer.node.machine import Machine
from tracer.rules import backends
from tracer.rules.ipset import IpSet
from tracer.rules.ipvs.netlink import VirtualServer

ALL = KernelAbilities(fentry=True, module_fentry=True)
# If two rows watch a function, the row with more arguments.
FUNCTIONS = {p.symbols[-1]: p for p in sorted(PROBES, key=lambda p: len(p.args)) if p.at != TRACEPOINT}


class FakeBtf:
    """BTF with the functions of the probe table, with exactly their arguments, and with every structure.

    reasons: whether it has drop reasons, as kernels since 5.17 do.
    """

    def __init__(self, reasons: bool = True) -> None:
        self._reasons = reasons

    def enumerators(self, name: str) -> dict[str, int]:
        return {"SKB_NOT_DROPPED_YET": 0} if self._reasons and name == "skb_drop_reason" else {}

    def parameters(self, function: str) -> list[tuple[str, str]] | None:
        probe = FUNCTIONS.get(function)
        return [("", kind.split("|")[0].partition("#")[0]) for kind in probe.args] if probe else None

    def tracepoint_parameters(self, name: str) -> list[tuple[str, str]] | None:
        return [("", "sk_buff *"), ("", "void *"), ("", "enum skb_drop_reason")][: 2 + self._reasons]

    def structure_size(self, name: str) -> int | None:
        return 8


class FakeTypes:
    """lacking: modules without BTF. modules_described: whether the other modules have BTF."""

    def __init__(self, lacking: Iterable[str] = (), vmlinux: Any = None, modules_described: bool = True) -> None:
        self.vmlinux, self._lacking = vmlinux or FakeBtf(), set(lacking)
        later = self.vmlinux.enumerators("skb_drop_reason")
        self.builtin_layouts = None if modules_described or later else BuiltinLayouts(self.vmlinux)

    def module(self, name: str) -> Any:
        return None if name in self._lacking else self.vmlinux

    layout_sources = KernelTypes.layout_sources


def symbols(without: Iterable[str] = ()) -> Symbols:
    """Every function of the probe table, in its module; `without`: missing symbols or modules."""
    gone = set(without)
    rows = [(s, p.module) for s, p in FUNCTIONS.items() if s not in gone and p.module not in gone]
    return Symbols(f"ffffffff81000000 T {name}" + f"\t[{module}]" * bool(module) for name, module in rows)


def probes(
    types: Any = None,
    known: Symbols | None = None,
    can: KernelAbilities | None = ALL,
    modules: Iterable[str] = (),
    ipv6: bool = True,
) -> dict[str, CheckResult]:
    """Check results by probe name."""
    types = types or FakeTypes()
    facts = doctor.probes(types, known or symbols(), can, set(modules), ipv6)
    return {fact.subject.removeprefix("probe "): fact for fact in facts}


def machine(root: Path, **files: str) -> Machine:
    """Files by path, with "__" for "/"."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Machine(root)


def capable(*names: str) -> str:
    return f"Name:\tx\nCapEff:\t{sum(1 << BITS[n] for n in names):016x}\n"


def test_each_probe_is_shown_with_its_symbol_attach_type_and_events() -> None:
    facts = probes()
    assert list(facts) == [p.name for p in PROBES if not p.lookups]
    assert facts["hook"] == CheckResult("probe hook", "ok", "nf_hook_slow by fexit: netfilter hooks and their verdicts")
    assert facts["nat"].text == "nf_nat_manip_pkt by fentry: address translation, before and after"
    assert facts["drop"].text.startswith("kfree_skb by raw tracepoint:")
    assert {f.status for f in facts.values()} == {0}


def test_probes_of_sk_lookup_are_only_needed_if_there_is_such_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    link = NetnsLink(1, 2, 3, bpf_syscall.SK_LOOKUP)
    monkeypatch.setattr(bpf_syscall, "netns_links", lambda most: [link])
    names = {p.name for p in PROBES if p.lookups}
    assert {probes()[name].state for name in names} == {"ok"}
    without = probes(known=symbols(without=["inet_lookup_run_sk_lookup"]))["lookup4"]
    assert (without.state, without.status) == ("missing", 1)
    assert without.text.endswith("; not shown: what eBPF programs of sk_lookup decide")
    monkeypatch.setattr(bpf_syscall, "netns_links", lambda most: [])
    assert not names & {*probes()}


def test_without_fentry_of_modules_their_functions_get_kprobes() -> None:
    facts = probes(can=KernelAbilities(fentry=True, module_fentry=False))
    assert " by fexit" in facts["hook"].text and " by kretprobe" in facts["table4"].text
    assert " by " not in probes(can=None)["hook"].text.partition(":")[0]


def test_a_module_that_is_not_loaded_needs_no_probe() -> None:
    fact = probes(known=symbols(without=["ip_tables"]))["table4"]
    assert fact == CheckResult("probe table4", "ok", "not needed: module ip_tables is not loaded")
    loaded = probes(known=symbols(without=["ip_tables"]), modules=["ip_tables"])["table4"]
    assert (loaded.state, loaded.status) == ("missing", 1)


def test_a_missing_function_names_the_events_that_are_not_shown() -> None:
    fact = probes(known=symbols(without=["skb_clone"]))["clone"]
    assert fact == CheckResult(
        "probe clone", "missing", "the kernel has no function skb_clone; not shown: copies of followed packets", 1
    )
    assert probes(known=symbols(without=["tcp_v6_send_synack"]))["synack6"].status == 1
    assert probes(known=symbols(without=["tcp_v6_send_synack"]), ipv6=False)["synack6"].state == "ok"


def test_a_verbose_probe_is_not_missed_by_a_default_run() -> None:
    fact = probes(known=symbols(without=["nf_nat_inet_fn"]), modules=["nf_nat"])["nat_hook"]
    assert (fact.state, fact.status) == ("missing", 0)


def test_a_missing_required_probe_is_fatal() -> None:
    fact = probes(known=symbols(without=["nf_hook_slow"]))["hook"]
    assert (fact.state, fact.status) == ("missing", 6)
    assert "nf_hook_slow" in fact.text


def test_modules_without_btf() -> None:
    fact = doctor.module_btf(FakeTypes(lacking=["nf_nat"]), {"nf_nat", "ip_tables", "ext4"})  # type: ignore[arg-type]
    assert fact.state == "degraded" and "none for nf_nat (" in fact.text
    assert doctor.module_btf(FakeTypes(), {"nf_nat", "ext4"}).text == "nf_nat"  # type: ignore[arg-type]
    old = FakeTypes(["nf_reject_ipv4"], FakeBtf(reasons=False), modules_described=False)
    guessed = probes(types=old)["unreach4"]
    assert (guessed.state, guessed.status) == ("degraded", 0)
    assert "nf_send_unreach by kprobe" in guessed.text and "no BTF" in guessed.text


@pytest.mark.parametrize(("reasons", "described"), [(True, True), (True, False), (False, True)])
def test_on_a_kernel_after_5_10_nothing_is_guessed(reasons: bool, described: bool) -> None:
    fact = probes(types=FakeTypes(["nf_reject_ipv4"], FakeBtf(reasons), described))["unreach4"]
    assert (fact.state, fact.status) == ("missing", 1)
    assert fact.text.startswith("the positions of its arguments are not known; not shown: ")


@pytest.mark.parametrize(
    ("euid", "held", "state", "message"),
    [
        (0, ("CAP_SYS_ADMIN", *LOSES), "ok", "root"),
        (0, ("CAP_SYS_ADMIN", "CAP_NET_RAW", "CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE", "CAP_SYSLOG"), "degraded", "CAP_NET_ADMIN"),
        (0, ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_DAC_OVERRIDE"), "degraded", "without CAP_SYS_PTRACE no pro"),
        (0, ("CAP_NET_ADMIN",), "missing", "root without CAP_SYS_ADMIN: run the container privileged"),
        (1000, (), "missing", "not root: run this command with sudo"),
    ],
)
def test_rights(euid: int, held: tuple[str, ...], state: str, message: str, tmp_path: Path) -> None:
    fact = doctor.rights(machine(tmp_path, proc__self__status=capable(*held)), euid)
    assert fact.state == state and message in fact.text
    assert fact.status == {"ok": 0, "degraded": 1, "missing": 3}[state]


def test_lockdown(tmp_path: Path) -> None:
    assert doctor.lockdown(Machine(tmp_path)).text == "none"
    integrity = machine(tmp_path, sys__kernel__security__lockdown="none [integrity] confidentiality\n")
    assert doctor.lockdown(integrity) == CheckResult("lockdown", "ok", "integrity")
    strict = machine(tmp_path, sys__kernel__security__lockdown="none integrity [confidentiality]\n")
    assert (doctor.lockdown(strict).state, doctor.lockdown(strict).status) == ("missing", 6)


def test_hidden_addresses_hide_the_names_of_dropping_functions(tmp_path: Path) -> None:
    hidden = machine(tmp_path, proc__kallsyms="0000000000000000 T a\n", proc__self__status=capable("CAP_SYSLOG"))
    assert doctor.addresses(hidden).status == 1 and "kptr_restrict" in doctor.addresses(hidden).text
    assert doctor.addresses(machine(tmp_path, proc__kallsyms="0 A x\nffffffff81000000 T a\n")).state == "ok"
    machine(tmp_path, proc__self__status=capable())
    (tmp_path / "proc/kallsyms").unlink()
    assert "no CAP_SYSLOG" in doctor.addresses(Machine(tmp_path)).text


def test_rulesets_in_use(tmp_path: Path) -> None:
    servers = [VirtualServer("10.96.0.1", 443, "tcp", "rr"), VirtualServer("10.96.0.10", 53, "udp", "rr")]
    sets = [IpSet("KUBE-CLUSTER-IP", "hash:ip,port", 2), IpSet("KUBE-LOOP-BACK", "hash:ip,port,ip", 0)]
    loaded = {"proc__net__ip_vs": "", "sys__module__ip_set__refcnt": "1"}
    root = machine(tmp_path, proc__net__ip_tables_names="nat\nfilter\n", proc__net__ip6_tables_names="", **loaded)
    found = backends.gather(root, True, lambda: ["ip kube-proxy", "inet lab"], lambda: servers, lambda: sets)
    facts = {f.subject: f for f in found}
    assert facts["iptables legacy"].text == "filter, nat"
    assert facts["ip6tables legacy"].text == "no tables"
    assert facts["nftables"].text == "inet lab, ip kube-proxy"
    assert facts["IPVS"] == CheckResult("IPVS", "ok", "2 virtual servers (rr)")
    assert facts["ipset"] == CheckResult("ipset", "ok", "2 sets, 2 entries")


def test_rulesets_not_in_use_are_not_read(tmp_path: Path) -> None:
    def never() -> list[Any]:
        raise AssertionError("the question would load its module")

    facts = list(backends.gather(Machine(tmp_path), False, never, never, never))
    assert [f.text.partition(":")[0] for f in facts] == ["not in use"] * 5
    assert doctor.exit_status(facts) == 0


def test_rulesets_that_cannot_be_read(tmp_path: Path) -> None:
    def denied() -> list[Any]:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    root = machine(tmp_path, proc__net__ip_vs="", sys__module__ip_set__refcnt="1")
    for fact in list(backends.gather(root, True, denied, denied, denied))[2:]:
        assert fact.state == "degraded" and "Operation not permitted" in fact.text


def test_exit_status_is_the_first_cause() -> None:
    def of(*statuses: int) -> int:
        return doctor.exit_status(CheckResult("x", "ok", "", s) for s in statuses)

    assert (of(), of(0), of(0, 1), of(1, 6, 5), of(4, 3)) == (0, 0, 1, 5, 3)


def no_bcc() -> ModuleType:
    raise NoBcc("The bcc library is missing.")


def test_an_empty_machine_raises_nothing(tmp_path: Path) -> None:
    facts = {f.subject: f for f in doctor.gather(Machine(tmp_path), no_bcc)}
    assert (facts["BTF"].state, facts["BTF"].status) == ("missing", 4)
    assert facts["bcc"] == CheckResult("bcc", "missing", "The bcc library is missing", 5)
    assert facts["fentry"].text == "unknown without bcc"
    assert doctor.exit_status(facts.values()) == 3
    assert not any(subject.startswith("probe") for subject in facts)


def test_a_broken_bcc_and_a_damaged_btf_raise_nothing(tmp_path: Path) -> None:
    def broken() -> ModuleType:
        raise OSError("libbcc.so.0: cannot open shared object file")

    facts = {f.subject: f for f in doctor.gather(machine(tmp_path, sys__kernel__btf__vmlinux="no BTF"), broken)}
    assert "libbcc.so.0" in facts["bcc"].text and facts["bcc"].status == 5
    assert "damaged" in facts["BTF"].text


def test_a_whole_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bcc = ModuleType("bcc")
    bcc.__file__, bcc.__dict__["__version__"] = "/usr/lib/python3/dist-packages/bcc/__init__.py", "0.31.0"
    monkeypatch.setattr(doctor, "KernelTypes", lambda directory: FakeTypes())
    monkeypatch.setattr("tracer.kernel.struct_layouts.header", lambda types: "")
    library = BccLibrary("0.31.0", Path("/usr/lib/python3/dist-packages/bcc"), (), True)
    monkeypatch.setattr(doctor, "installed", lambda: library)
    monkeypatch.setenv(cache_directory.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "abilities", lambda *_: ALL)
    lines = "".join(f"ffffffff81000000 T {name}\n" for name in FUNCTIONS if name != "nft_do_chain")
    root = machine(tmp_path, proc__kallsyms=lines, proc__self__status=capable("CAP_SYS_ADMIN", *LOSES))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    facts = doctor.gather(root, lambda: bcc)
    found = {f.subject: f for f in facts}
    assert found["bcc"].text == "0.31.0 in /usr/lib/python3/dist-packages/bcc"
    assert found["fentry"] == CheckResult("fentry", "ok", "available for the kernel and its modules")
    assert found["probe chain"].text == "not needed: module nf_tables is not loaded"
    assert {f.state for f in facts} == {"ok"} and doctor.exit_status(facts) == 0
    kernel = Kernel(cast(KernelTypes, FakeTypes()), Symbols(lines.splitlines()), "6.12")
    assert doctor.gather(root, None, kernel) == facts, "a run has the same results without reading the kernel again"


def test_damaged_btf_of_a_module_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*args: object) -> CheckResult:
        raise NoBtf("The kernel's BTF is damaged or of another byte order.")

    monkeypatch.setattr(doctor, "KernelTypes", lambda directory: FakeTypes())
    monkeypatch.setattr("tracer.kernel.struct_layouts.header", lambda types: "")
    monkeypatch.setattr(doctor, "module_btf", damaged)
    fact = next(f for f in doctor.gather(Machine(tmp_path), no_bcc) if f.subject == "module BTF")
    assert (fact.state, fact.status) == ("missing", 4)


def test_the_program_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache_directory.VARIABLE, str(tmp_path / "cache"))
    assert doctor.program_cache() == CheckResult("program cache", "ok", f"in {tmp_path / 'cache'}")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    found = doctor.program_cache()
    assert found.state == "degraded" and found.status == 0
    assert found.text == f"not usable: others may write to {tmp_path / 'cache'}; each start compiles the programs"
    monkeypatch.setenv(cache_directory.VARIABLE, "off")
    assert doctor.program_cache() == CheckResult("program cache", "ok", "off: K8SNET_TRACE_CACHE=off")
