# SPDX-License-Identifier: Apache-2.0
"""Restore a ruleset by name, in either back end of iptables, and remove all rules.

A ruleset is a file rulesets/NAME.rules, in the format of iptables-save; those with names ending in -v6 are for ip6tables.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from scenes import nfnetlink

Backend = Literal["legacy", "nft"]
BACKENDS: tuple[Backend, ...] = ("legacy", "nft")
DIR = Path(__file__).with_name("rulesets")

_COUNTERS = re.compile(r"^\[\d+:\d+\] ", re.MULTILINE)
_POLICY_COUNTERS = re.compile(r"^(:\S+ \S+) \[\d+:\d+\]", re.MULTILINE)
_NFACCT = re.compile(r"--nfacct-name\s+(\S+)")
_SAVED_RULE = re.compile(r"\[(\d+):(\d+)\] (-A .*)")
_HOOK_CHAINS = {
    "raw": ("PREROUTING", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "security": ("INPUT", "FORWARD", "OUTPUT"),
}


class RestoreError(RuntimeError):
    """iptables-restore, or another tool, failed; the text is its output."""


class Counter(NamedTuple):
    """Packets and bytes that a rule has matched since it was restored."""

    packets: int
    octets: int


def names() -> list[str]:
    """The names of all rulesets."""
    return sorted(p.stem for p in DIR.glob("*.rules"))


def read(name: str) -> str:
    """The text of a ruleset. KeyError if it does not exist."""
    path = DIR / f"{name}.rules"
    if not path.exists():
        raise KeyError(f"no ruleset {name!r}; there are {', '.join(names())}")
    return path.read_text()


def family_of(name: str) -> int:
    """The ruleset's family: 4 or 6."""
    return 6 if name.endswith("-v6") else 4


def restore(*rulesets: str, backend: Backend = "legacy", extra: Iterable[str] = ()) -> None:
    """Replace the tables in each of `rulesets`, then add the rules of `extra`.

    Give at most one of `rulesets` per family, since a second would replace the first. KeyError, RestoreError.
    """
    for name in rulesets:
        restore_text(read(name), family_of(name), backend)
    for name in extra:
        restore_text(read(name), family_of(name), backend, flush=False)


def restore_text(text: str, family: int, backend: Backend, *, flush: bool = True) -> None:
    """The same for a text in the format of iptables-save, with or without counters (they start at zero)."""
    text = _POLICY_COUNTERS.sub(r"\1 [0:0]", _COUNTERS.sub("", text))
    for name in sorted(set(_NFACCT.findall(text))):
        nfnetlink.acct_new(name)
    _run([_tool(family, backend, "restore"), *([] if flush else ["--noflush"])], text)


def flush() -> None:
    """Remove all rules of both families and back ends, all connections and unused nfacct objects.

    The tables of the legacy back end are also unloaded, so that they do not appear to be in use together with nft's.
    """
    for family in (4, 6):
        tables = _legacy_tables(family)
        if not tables:
            continue
        _run([_tool(family, "legacy", "restore")], "".join(_empty(t) for t in tables))
        prefix = "iptable" if family == 4 else "ip6table"
        # a table that cannot be unloaded is at least empty
        subprocess.run(["/sbin/rmmod", *(f"{prefix}_{t}" for t in tables)], stderr=subprocess.DEVNULL, check=False)
    if Path("/sys/module/nf_tables").exists():
        _run([_which("nft"), "flush", "ruleset"])
    if Path("/sys/module/nfnetlink_acct").exists():
        nfnetlink.acct_delete_unused()
    if Path("/sys/module/nf_conntrack").exists():
        nfnetlink.conntrack_flush()


def counters(backend: Backend, family: int = 4) -> dict[str, Counter]:
    """{rule as iptables-save prints it, without counters: its Counter}; counters of equal rules are added."""
    out: dict[str, Counter] = {}
    for packets, octets, rule in _SAVED_RULE.findall(_run([_tool(family, backend, "save"), "-c"])):
        old = out.get(rule, Counter(0, 0))
        out[rule] = Counter(old.packets + int(packets), old.octets + int(octets))
    return out


def _legacy_tables(family: int) -> list[str]:
    """Names of the legacy tables that exist in this namespace."""
    try:
        return Path(f"/proc/net/ip{'6' if family == 6 else ''}_tables_names").read_text().split()
    except FileNotFoundError:
        return []


def _empty(table: str) -> str:
    policies = "".join(f":{chain} ACCEPT [0:0]\n" for chain in _HOOK_CHAINS[table])
    return f"*{table}\n{policies}COMMIT\n"


def _tool(family: int, backend: Backend, verb: str) -> str:
    return _which(f"ip{'6' if family == 6 else ''}tables-{backend}-{verb}")


def _which(tool: str) -> str:
    path = shutil.which(tool, path="/usr/sbin:/sbin:/usr/bin:/bin")
    if path is None:
        raise RestoreError(f"{tool} is not installed")
    return path


def _run(command: list[str], text: str | None = None) -> str:
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RestoreError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
