"""Sends random packets through random rules, and compares what the tracer says with what the kernel's own trace says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from scenes import nfnetlink, rules
from scenes.topology import NODE4, NODE6, PODS, Node
from tests.kernel.truth import trace
from tests.kernel.truth.senders import Sender
from tracer import record
from tracer.filters import Filter
from tracer.header import completed
from tracer.kernel.session import Kernel, Session
from tracer.names import Namespaces
from tracer.record import Event, Flag, Kind
from tracer.rules import nft_hits, nft_live
from tracer.rules.model import Visit, Walk
from tracer.rules.nft_watch import NftWatch

PACKETS_A_RULESET = 25
SHOWN, SHOWN_CHARACTERS = 30, 300
_DID = {"REJECT": "DROP", "NFQUEUE": "QUEUE"} | dict.fromkeys(("MARK", "CONNMARK", "LOG", "NFLOG", "SET"), "CONTINUE")
Account = tuple[str, trace.Header, tuple[trace.Step, ...]]
"""Of one run: table, header, steps."""


def _header(e: Event) -> trace.Header:
    # What stands where an echo has its id is something else in other messages; the kernel's account leaves it out.
    sport = e.sport if e.protocol not in (1, 58) or e.dport >> 8 in trace.ECHOES else 0
    return record.address(e.src), record.address(e.dst), e.protocol, sport, e.dport


def _neighbours(header: trace.Header) -> bool:
    """Neighbour discovery, which comes when it likes: also between the moments when the two accounts begin."""
    return header[2] == 58 and header[4] >> 8 in range(133, 138)


def _did(visit: Visit) -> str:
    """The kernel's word for what a visit did: DNAT and the like accept, MARK and the like go on."""
    word = visit.verdict
    if visit.rule is None or word.startswith(("JUMP ", "GOTO ")) or word in ("ACCEPT", "DROP", "RETURN", "CONTINUE"):
        return word
    return _DID.get(word, "ACCEPT")


def _steps(walk: Walk) -> tuple[trace.Step, ...]:
    return tuple((v.place.chain, v.rule.handle if v.rule else 0, _did(v)) for v in walk.visits)


def walks(batch: Any, netns: int, watch: NftWatch) -> Iterator[tuple[Event, Event, Walk]]:
    """Every chain run in this namespace, with its walk; before it the event that shows the packet's header."""
    packets: dict[int, list[Any]] = {}
    for e in record.events(batch):
        packets.setdefault(e.packet, []).append(e)
    for events in packets.values():
        events.sort(key=lambda e: e.time)
        found, seen = nft_hits.runs(events), None
        for e in completed([e for e in events if e.kind not in record.PARTS])[0]:
            if not e.flags & (Flag.FLAG_NO_HEADER | Flag.FLAG_CLONE):  # of a packet out of fragments these are copies
                seen = e
            if e.kind == Kind.EVENT_CHAIN and e.netns == netns and seen:
                yield seen, e, nft_hits.walk(e, found[e.hop], watch)


class Bench:
    """The running tracer and the node's namespace. checked: a function that finds more to object to in a walk."""

    def __init__(self, session: Session, watch: NftWatch) -> None:
        self.session, self.watch = session, watch
        self.netns = Namespaces().own
        self.packets = self.rules = self.mismatches = 0

    def round(self, random: Random, count: int, restore: Callable[[Random], None], check: Callable[[Event, Walk], str]) -> None:
        """One ruleset and some packets. restore: puts the rules in force, under the trace's own table."""
        rules.flush()
        restore(random)
        with trace.listening() as listener:
            self._settle()
            sender = Sender()
            listener.read(0.1)
            self.session.drain()
            self.session.losses()
            for _ in range(count):
                sender.send(random)
                time.sleep(0.01)
            sender.close()
            true = listener.read(0.5)
            batch = self.session.events()
            losses = self.session.losses()
            found = list(walks(batch, self.netns, self.watch))
        if losses or listener.lost:
            print("something was lost, so this round proves nothing:", losses, listener.lost)
            return
        self.packets += count
        self.rules += sum(len(run.steps) for run in true)
        self._compare(true, found, check)

    def _settle(self) -> None:
        """Waits until the ruleset in force has been read."""
        from tracer.rules import nft_dump
        from tracer.rules.nfnetlink import Nfnetlink

        with Nfnetlink() as nfnetlink:
            now = nft_dump.generation(nfnetlink)
        until = time.monotonic() + 60
        while not self.watch.find(self.netns, now):
            assert time.monotonic() < until, "the ruleset was not read"
            time.sleep(0.02)

    def _compare(
        self, true: list[trace.Run], found: list[tuple[Event, Event, Walk]], check: Callable[[Event, Walk], str]
    ) -> None:
        # The table that turns the trace on stands before fragments are put together: they have no headers to compare.
        told = (r for r in true if r.table != trace.TABLE and not _neighbours(r.header))
        said: Counter[Account] = Counter((r.table, r.header, tuple(r.steps)) for r in told)
        ours: Counter[Account] = Counter()
        for seen, e, walk in found:
            table = e.table.split(b"\0")[0].decode()
            if table == trace.TABLE or _neighbours(_header(seen)):
                continue
            ours[table, _header(seen), _steps(walk)] += 1
            wrong = walk.undecided or check(seen, walk)
            if wrong:
                self._object(f"{wrong}: {walk}")
        for account in (said - ours).elements():
            self._object(f"only the kernel says {account}")
        for account in (ours - said).elements():
            self._object(f"only the tracer says {account}")

    def _object(self, what: str) -> None:
        self.mismatches += 1
        if self.mismatches <= SHOWN:
            print(what[:SHOWN_CHARACTERS], file=sys.stderr)


@contextmanager
def bench(session: Session | None = None) -> Iterator[Bench]:
    """A node without rules, and the tracer on it: the one given, or a new one."""
    with Node(bridge_nf=False):
        for address in (NODE4, NODE6, *(p.addr4 for p in PODS), *(p.addr6 for p in PODS)):
            subprocess.run(["ip", "netns", "exec", "client", "ping", "-c1", "-W1", address], stdout=subprocess.DEVNULL)
        subprocess.run(["nft", "list", "ruleset"], check=True, stdout=subprocess.DEVNULL)
        nfnetlink.conntrack_flush()
        own = Namespaces().own
        if session:
            session.set_filter(Filter(netns=own))
            with nft_live.watching(own) as watch:
                yield Bench(session, watch)
        else:
            kernel = Kernel.running()
            with Session(kernel, Filter(netns=own)) as new, nft_live.watching(own) as watch:
                yield Bench(new, watch)
        rules.flush()


def run(
    packets: int,
    seed: int,
    restore: Callable[[Random], None],
    check: Callable[[Event, Walk], str] = lambda e, walk: "",
    session: Session | None = None,
) -> tuple[int, int, int]:
    """Packets compared, rules that acted on them, and what did not agree."""
    random = Random(seed)
    with bench(session) as b:
        tries = 0
        while b.packets < packets and tries < 3 * packets // PACKETS_A_RULESET + 3:
            tries += 1
            b.round(random, min(PACKETS_A_RULESET, packets - b.packets), restore, check)
        return b.packets, b.rules, b.mismatches
