"""The text of rules as their user would write it, from the tools that know how: `nft`, and `iptables-nft-save` for the tables
of iptables-nft, of which `nft` hides comments, matches and targets. Both only read."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

from tracer.rules import save
from tracer.rules.model import Rule

IPTABLES_TABLES = frozenset({"raw", "mangle", "nat", "filter", "security"})
SAVE = {"ip": "iptables-nft-save", "ip6": "ip6tables-nft-save"}
PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"
TOOL_SECONDS = 60
Saves = Callable[[str, str], Mapping[str, Sequence[Rule]]]
"""What prints the rules of a table of iptables-nft: chain -> rules, by family and table."""
_HANDLE = re.compile(r"^(?P<text>.*?) # handle (?P<handle>\d+)$", re.S)
_CHAIN = re.compile(r"^\tchain (?P<name>\S+) \{")


def saved(text: str) -> dict[str, tuple[Rule, ...]]:
    """The rules of each chain of one table, from what iptables-save prints for it, with or without counters."""
    return {chain: rules for (_, _, chain), rules in save.parse(text).chains.items()}


def listed(text: str) -> dict[int, str]:
    """The text of each rule by its handle, from what `nft -s -a list table` prints. Rules that nft writes on several lines,
    for the sake of a long map, are joined to one."""
    out: dict[int, str] = {}
    in_chain, parts = False, list[str]()
    for line in text.splitlines():
        if line == "\t}":
            in_chain, parts = False, []
        elif _CHAIN.match(line):
            in_chain = True
        elif in_chain:
            parts.append(line.strip())
            found = _HANDLE.match(" ".join(parts))
            if found:
                out[int(found["handle"])] = _without_header(found["text"])
                parts = []
            elif _is_header(parts[0]):
                parts = []
    return out


def _is_header(line: str) -> bool:
    """A base chain's type, or a chain's comment: lines without a handle that are no rule."""
    return (line.startswith("type ") and " hook " in line) or (line.startswith('comment "') and line.endswith('"'))


def _without_header(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip() if '"' not in text else text.strip()


def tool(name: str) -> str | None:
    """Where a tool is; None when it is not installed."""
    return shutil.which(name) or shutil.which(name, path=PATH)


def run(*command: str) -> str | None:
    """What a tool prints; None when it is missing, fails or takes too long."""
    path = tool(command[0])
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TOOL_SECONDS,
            errors="replace", check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def list_table(family: str, table: str) -> dict[int, str]:
    """listed() of a table of this namespace; {} when `nft` is missing or fails."""
    return listed(run("nft", "-s", "-a", "list", "table", family, table) or "")


def save_table(family: str, table: str) -> dict[str, tuple[Rule, ...]]:
    """saved() of a table of this namespace; {} when it is none of iptables', or the tool is missing or fails."""
    if family not in SAVE or table not in IPTABLES_TABLES:
        return {}
    return saved(run(SAVE[family], "-t", table) or "")
