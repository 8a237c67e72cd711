# SPDX-License-Identifier: Apache-2.0
"""Legacy iptables and ip6tables: `-t raw -j TRACE`, and the kernel's log has "TRACE: filter:INPUT:rule:3 IN=eth0 ..."."""

from __future__ import annotations

import ipaddress
import os
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scenes import rules
from scenes.netns import entered
from tests.kernel import modules
from tests.kernel.truth import legacy_odd, legacy_rules, marked, second, sets
from tests.kernel.truth.edges import Places
from tests.kernel.truth.run import Account, Key
from tracer.events import record
from tracer.events.record import Event
from tracer.events.table_trace import SHAPE_AT, SHAPE_MASK, Shape
from tracer.model.rule import RuleTrace
from tracer.node.namespaces import Namespaces

_LINE = re.compile(r"TRACE: (\w+):([^:]+):(rule|return|policy):(\d+) (.*)")
_FIELD = re.compile(r"\b(\w+)=(\S*)")
NEIGHBOUR_TYPES = range(130, 144)
"""ICMPv6 types of messages that the kernel sends by itself, at any time, and floods."""
_NUMBERS = {"ICMP": 1, "TCP": 6, "UDP": 17, "ICMPv6": 58, "ESP": 50, "AH": 51, "UDPLITE": 136}
_WITH_PORTS = frozenset({6, 17, 136})
_WITH_HEADER = frozenset({Shape.SHAPE_WHOLE, Shape.SHAPE_NO_OPTIONS})
MOST_LINES = 50_000
"""Lines of the log between two readings: more mean that a packet circulates, and its end is not awaited."""
_LOGGERS = {2: "nf_log_ipv4", 10: "nf_log_ipv6"}
REPLACE = """while :; do
  for n in 0 1 2; do iptables-legacy-restore $0.4.$n; sleep 0.2; ip6tables-legacy-restore $0.6.$n; sleep 0.2; done
done"""


class Truth:
    """The kernel's account is what nf_log writes to the log. A context manager: it removes what it made at its end.

    odd: with matches that need further modules, long chains, and rules that are replaced while packets pass.
    """

    def __init__(self, odd: bool = False) -> None:
        self._odd, self._round = odd, 0
        self._log = -1
        self._reported: Account = {}
        self._made = ExitStack()
        self.overruns = 0

    def __enter__(self) -> Truth:
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()

    def prepare(self) -> None:
        modules.load(modules.RANDOM_RULES)
        if self._odd:
            modules.load(legacy_odd.MODULES)
        self._made.enter_context(second.namespace())
        for ns in (None, second.NAME):
            with entered(ns):
                sets.make()
        self._made.enter_context(marked.sockets())
        subprocess.run(["dmesg", "-n", "1"], check=True)
        for family, logger in _LOGGERS.items():
            Path(f"/proc/sys/net/netfilter/nf_log/{family}").write_text(logger)
        second.log(_LOGGERS)
        self._log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._log, 0, os.SEEK_END)

    def restore(self, rng: random.Random) -> None:
        self._round += 1
        long = legacy_rules.LONG if self._odd and self._round % 8 == 2 else 0
        for ns in (None, second.NAME):
            for v6 in (False, True):
                with entered(ns):
                    text = legacy_rules.make(rng, v6, self._odd, long, ns is None)
                    rules.restore_text(text, 6 if v6 else 4, "legacy")
                long = 0

    @contextmanager
    def replacing(self, rng: random.Random) -> Iterator[None]:
        """Every sixth round, the node's table filter is replaced every 200 ms."""
        if not self._odd or self._round % 6 != 4:
            yield
            return
        with tempfile.TemporaryDirectory() as directory:
            for family in (4, 6):
                for n in range(3):
                    text = legacy_rules.table_of(rng, "filter", family == 6, self._odd)
                    Path(f"{directory}/rules.{family}.{n}").write_text(text)
            process = subprocess.Popen(["sh", "-c", REPLACE, f"{directory}/rules"], stderr=subprocess.DEVNULL)
            try:
                yield
            finally:
                process.terminate()
                process.wait()

    def netns(self) -> frozenset[int]:
        return frozenset({Namespaces().node, second.netns()})

    def collect(self) -> bool:
        has_lines, lines = False, 0
        while True:
            lines += 1
            if lines > MOST_LINES:
                self.overruns += 1
                os.lseek(self._log, 0, os.SEEK_END)
                return has_lines
            try:
                line = os.read(self._log, 8192).decode(errors="replace")
            except BlockingIOError:
                return has_lines
            except BrokenPipeError:
                self.overruns += 1
                continue
            found = _LINE.search(line)
            if found:
                has_lines = True
                self._take(found[1], found[2], found[3], int(found[4]), found[5])

    def account(self) -> Account:
        reported, self._reported = self._reported, {}
        return reported

    def _take(self, table: str, chain: str, kind: str, number: int, text: str) -> None:
        fields: dict[str, str] = {}
        for name, value in _FIELD.findall(text.split(" [")[0]):
            fields.setdefault(name, value)
        name = fields.get("PROTO", "0")
        protocol = int(name) if name.isdigit() else _NUMBERS[name]
        own = dict(_FIELD.findall(text.split(" [")[0].partition(" PROTO=")[2]))  # an IPv4 header has an ID too
        src, dst = (str(ipaddress.ip_address(fields[name])) for name in ("SRC", "DST"))
        if protocol in (1, 58):
            ends = (int(own.get("TYPE", "0")), int(own.get("ID", "0")))
            if protocol == 58 and ends[0] in NEIGHBOUR_TYPES:
                return
        else:
            ends = (int(own.get("SPT", "0")), int(own.get("DPT", "0")))
        if second.is_elsewhere(src, dst):  # of rare headers the log has too little: the address is enough
            protocol, ends = 0, (0, 0)
        ident = int(fields.get("ID", "0")) if ":" not in src else 0
        key = (table, fields["IN"], fields["OUT"], protocol, src, dst, ident, *ends)
        places = self._reported.setdefault(key, [])
        if kind == "return":
            return  # the chain's end, not a rule: every rule has a match, and none is logged as "return"
        if (table, number) != ("raw", 1) or chain not in ("PREROUTING", "OUTPUT"):
            places.append((chain, 0 if kind == "policy" else number))

    def key_and_places(self, e: Event, trace: RuleTrace) -> tuple[Key, Places] | None:
        ends = record.header(e)
        names = (e.in_name.split(b"\0")[0].decode(), e.out_name.split(b"\0")[0].decode())
        if e.protocol == 58 and e.dport >> 8 in NEIGHBOUR_TYPES:
            return None
        # The log has neither ports nor types of an incomplete header, and nothing of a rule that did not match.
        numbers, protocol = (0, 0), e.protocol
        shape = e.state >> SHAPE_AT & SHAPE_MASK
        if shape in _WITH_HEADER and e.protocol in (1, 58):
            numbers = (e.dport >> 8, e.sport if e.dport >> 8 in (0, 8, 128, 129) else 0)
        elif shape in _WITH_HEADER and e.protocol in _WITH_PORTS:
            numbers = (ends.sport, ends.dport)
        if second.is_elsewhere(ends.src, ends.dst):
            protocol, numbers = 0, (0, 0)
        table = e.table.split(b"\0")[0].decode()
        places = [(v.location.chain, v.location.number) for v in trace.hits if v.verdict != "TRACE" and not v.hotdrop]
        return (table, *names, protocol, ends.src, ends.dst, e.ident if ":" not in ends.src else 0, *numbers), places
