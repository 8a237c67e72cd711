"""What holds rules in this network namespace: legacy iptables, nftables, IPVS.

The kernel is only asked about what it has already loaded: a question to nftables would load its module, and reading a
table through iptables would create the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tracer.facts import Fact, Machine

FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
"""nftables' families as nft spells them, by number."""

_NOT_LOADED = "not in use: the kernel has not loaded it"


def nft_loaded() -> bool:
    """Whether the kernel has nf_tables, built in or as a module."""
    with open("/proc/kallsyms", encoding="ascii", errors="replace") as lines:
        return any(line.split()[2] == "nft_do_chain" for line in lines)


def nft_tables() -> list[str]:
    """The nftables tables of this network namespace, as nft names them: "ip kube-proxy". May raise anything."""
    from pyroute2.nftables.main import NFTables

    with NFTables(nfgen_family=0) as socket:
        found = [(m["nfgen_family"], m.get_attr("NFTA_TABLE_NAME")) for m in socket.get_tables()]
    return [f"{FAMILIES.get(family, family)} {name}" for family, name in found]


def gather(
    machine: Machine, nft_loaded: bool, ipvs_shown: bool, tables: Callable[[], Iterable[str]] = nft_tables
) -> Iterator[Fact]:
    """nft_loaded: the kernel has nf_tables. ipvs_shown: there is a probe that watches IPVS. tables: lists nftables'."""
    yield _legacy(machine, "iptables", "proc/net/ip_tables_names")
    yield _legacy(machine, "ip6tables", "proc/net/ip6_tables_names")
    yield _nftables(tables) if nft_loaded else Fact("nftables", "ok", _NOT_LOADED)
    yield _ipvs(machine, ipvs_shown)


def _legacy(machine: Machine, name: str, path: str) -> Fact:
    subject = f"{name} legacy"
    try:
        tables = machine.read(path)
    except PermissionError:
        return Fact(subject, "degraded", "only root can see its tables")
    if tables is None:
        return Fact(subject, "ok", _NOT_LOADED)
    return Fact(subject, "ok", ", ".join(sorted(tables.split())) or "no tables")


def _nftables(tables: Callable[[], Iterable[str]]) -> Fact:
    try:
        found = sorted(tables())
    except Exception as e:  # pyroute2 raises many kinds, and may itself be missing
        return Fact("nftables", "degraded", f"its tables cannot be listed: {e}")
    return Fact("nftables", "ok", ", ".join(found) or "no tables")


def _ipvs(machine: Machine, shown: bool) -> Fact:
    lines = machine.read_quietly("proc/net/ip_vs").splitlines()
    servers = sum(line.startswith(("TCP ", "UDP ", "SCTP ", "FWM ")) for line in lines)
    if not servers:
        return Fact("IPVS", "ok", "not in use")
    found = f"{servers} virtual server{'s' * (servers != 1)}"
    if shown:
        return Fact("IPVS", "ok", found)
    return Fact("IPVS", "degraded", f"{found}: what IPVS itself does to a packet is not shown", 1)
