"""Legacy iptables and ip6tables: `-t raw -j TRACE`, and the kernel's log tells "TRACE: filter:INPUT:rule:3 IN=eth0 ..."."""

from __future__ import annotations

import ipaddress
import os
import random
import re
import subprocess
from pathlib import Path

from scenes import rules
from tests.kernel import modules
from tests.kernel.truth import legacy_rules, sets
from tests.kernel.truth.run import Account, Key, Places
from tracer import record
from tracer.record import Event
from tracer.rules.model import Walk

_LINE = re.compile(r"TRACE: (\w+):([^:]+):(rule|return|policy):(\d+) (.*)")
_FIELD = re.compile(r"\b(\w+)=(\S*)")
NEIGHBOURS = range(130, 144)
"""ICMPv6 types of what the kernel sends by itself, at any time, and floods."""
_NUMBERS = {"ICMP": 1, "TCP": 6, "UDP": 17, "ICMPv6": 58}


class Truth:
    """The kernel's account is what nf_log writes to the log."""

    def __init__(self) -> None:
        self._log = -1
        self._told: Account = {}
        self._sizes: dict[tuple[bool, str, str], int] = {}
        self.overruns = 0

    def prepare(self) -> None:
        modules.load(modules.RANDOM_RULES)
        sets.make()
        subprocess.run(["dmesg", "-n", "1"], check=True)
        for family, logger in ((2, "nf_log_ipv4"), (10, "nf_log_ipv6")):
            Path(f"/proc/sys/net/netfilter/nf_log/{family}").write_text(logger)
        self._log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._log, 0, os.SEEK_END)

    def restore(self, dice: random.Random) -> None:
        self._sizes.clear()
        for v6 in (False, True):
            made = legacy_rules.make(dice, v6)
            rules.restore_text(made, 6 if v6 else 4, "legacy")
            table = ""
            for line in made.splitlines():
                if line.startswith("*"):
                    table = line[1:]
                elif line.startswith("-A "):
                    key = (v6, table, line.split()[1])
                    self._sizes[key] = self._sizes.get(key, 0) + 1

    def collect(self) -> None:
        while True:
            try:
                line = os.read(self._log, 8192).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.overruns += 1
                continue
            found = _LINE.search(line)
            if found:
                self._take(found[1], found[2], found[3], int(found[4]), found[5])

    def account(self) -> Account:
        told, self._told = self._told, {}
        return told

    def _take(self, table: str, chain: str, kind: str, number: int, text: str) -> None:
        fields: dict[str, str] = {}
        for name, value in _FIELD.findall(text.split(" [")[0]):
            fields.setdefault(name, value)
        protocol = _NUMBERS.get(fields["PROTO"], 0)
        own = dict(_FIELD.findall(text.split(" [")[0].partition(" PROTO=")[2]))  # an IPv4 header has an ID too
        src, dst = (str(ipaddress.ip_address(fields[name])) for name in ("SRC", "DST"))
        if protocol in (1, 58):
            ends = (int(own["TYPE"]), int(own.get("ID", "0")))
            if protocol == 58 and ends[0] in NEIGHBOURS:
                return
        else:
            ends = (int(fields.get("SPT", "0")), int(fields.get("DPT", "0")))
        key = (table, fields["IN"], fields["OUT"], protocol, src, dst, *ends)
        places = self._told.setdefault(key, [])
        behind = number > self._sizes.get((":" in src, table, chain), 0)
        if kind == "return" and behind:
            return  # the chain's end, not a rule
        if (table, number) != ("raw", 1) or chain not in ("PREROUTING", "OUTPUT"):
            places.append((chain, 0 if kind == "policy" and behind else number))

    def visited(self, e: Event, walk: Walk) -> tuple[Key, Places] | None:
        ends = record.header(e)
        names = (e.in_name.split(b"\0")[0].decode(), e.out_name.split(b"\0")[0].decode())
        if e.protocol == 58 and e.dport >> 8 in NEIGHBOURS:
            return None
        if e.protocol in (1, 58):
            numbers = (e.dport >> 8, e.sport if e.dport >> 8 in (0, 8, 128, 129) else 0)
        else:
            numbers = (ends.sport, ends.dport)
        table = e.table.split(b"\0")[0].decode()
        places = [(v.place.chain, v.place.number) for v in walk.visits if v.verdict != "TRACE"]
        return (table, *names, e.protocol, ends.src, ends.dst, *numbers), places
