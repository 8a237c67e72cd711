# SPDX-License-Identifier: Apache-2.0
"""The rule back ends in use in this network namespace: legacy iptables, nftables, IPVS, and the ipsets that rules use.

Only back ends that the kernel has already loaded are queried: a request to nftables would load its module, and reading a table
through iptables would create the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tracer.model.check import CheckResult
from tracer.model.rule import NFT_FAMILIES
from tracer.node.machine import Machine
from tracer.rules import ipset
from tracer.rules.ipvs import netlink
from tracer.rules.ipvs.netlink import VirtualServer

_NOT_LOADED = "not in use: the kernel has not loaded it"


def nft_tables() -> list[str]:
    """The nftables tables of this network namespace, as nft names them ("ip kube-proxy"). Raises errors of pyroute2."""
    from pyroute2.nftables.main import NFTables

    with NFTables(nfgen_family=0) as socket:
        found = [(m["nfgen_family"], m.get_attr("NFTA_TABLE_NAME")) for m in socket.get_tables()]
    return [f"{NFT_FAMILIES.get(family, family)} {name}" for family, name in found]


def virtual_servers() -> list[VirtualServer]:
    """The virtual servers of IPVS in this network namespace. Raises errors of pyroute2."""
    with netlink.IpvsSocket() as socket:
        return socket.virtual_servers()


def gather(
    machine: Machine,
    nft_loaded: bool,
    tables: Callable[[], Iterable[str]] = nft_tables,
    servers: Callable[[], Sequence[VirtualServer]] = virtual_servers,
    sets: Callable[[], Sequence[ipset.IpSet]] = ipset.sets,
) -> Iterator[CheckResult]:
    """Checks each back end.

    Args:
        machine: Gives the files of /proc and /sys.
        nft_loaded: Whether the kernel has nf_tables.
        tables: Lists the tables of nftables.
        servers: Lists the virtual servers of IPVS.
        sets: Lists the ipsets.

    Yields:
        One check result per back end.
    """
    yield _legacy(machine, "iptables", "proc/net/ip_tables_names")
    yield _legacy(machine, "ip6tables", "proc/net/ip6_tables_names")
    yield _nftables(tables) if nft_loaded else CheckResult("nftables", "ok", _NOT_LOADED)
    yield _ipvs(servers) if machine.has("proc/net/ip_vs") else CheckResult("IPVS", "ok", _NOT_LOADED)
    yield _sets(sets) if machine.has("sys/module/ip_set") else CheckResult("ipset", "ok", _NOT_LOADED)


def _legacy(machine: Machine, name: str, path: str) -> CheckResult:
    subject = f"{name} legacy"
    try:
        tables = machine.read(path)
    except PermissionError:
        return CheckResult(subject, "degraded", "only root can see its tables")
    if tables is None:
        return CheckResult(subject, "ok", _NOT_LOADED)
    return CheckResult(subject, "ok", ", ".join(sorted(tables.split())) or "no tables")


def _nftables(tables: Callable[[], Iterable[str]]) -> CheckResult:
    try:
        found = sorted(tables())
    except Exception as e:  # pyroute2 raises many kinds, and may itself be missing
        return CheckResult("nftables", "degraded", f"its tables cannot be listed: {e}")
    return CheckResult("nftables", "ok", ", ".join(found) or "no tables")


def _ipvs(servers: Callable[[], Sequence[VirtualServer]]) -> CheckResult:
    try:
        found = servers()
    except Exception as e:  # as above
        return CheckResult("IPVS", "degraded", f"its virtual servers cannot be listed: {e}")
    schedulers = ", ".join(sorted({s.scheduler for s in found if s.scheduler}))
    return CheckResult("IPVS", "ok", _count(found, "virtual server") + (f" ({schedulers})" if schedulers else ""))


def _sets(sets: Callable[[], Sequence[ipset.IpSet]]) -> CheckResult:
    try:
        found = sets()
    except Exception as e:  # as above
        return CheckResult("ipset", "degraded", f"the sets cannot be listed: {e}")
    return CheckResult("ipset", "ok", _count(found, "set") + (f", {sum(s.entries for s in found)} entries" if found else ""))


def _count(found: Sequence[object], what: str) -> str:
    return f"{len(found)} {what}{'s' * (len(found) != 1)}" if found else f"no {what}s"
