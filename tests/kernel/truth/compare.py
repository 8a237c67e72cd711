# SPDX-License-Identifier: Apache-2.0
"""Sends random packets through random rules, and compares what the tracer says with what the kernel's own trace says."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from ipaddress import ip_address, ip_network
from random import Random
from typing import Any, Protocol

from scenes import nfnetlink, rules
from scenes.netns import RUN_DIR, entered
from scenes.topology import NODE4, NODE6, PODS, Node
from tests.kernel.truth import marked, trace
from tests.kernel.truth.senders import Sender
from tracer.events import record
from tracer.events.record import Event, Flag, Kind
from tracer.kernel.session import Kernel, Session
from tracer.model.filter import Filter
from tracer.model.rule import RuleHit, RuleTrace
from tracer.node import netns, netns_cookie
from tracer.node.namespaces import Namespaces
from tracer.node.nfnetlink import Nfnetlink
from tracer.packets.header_tracker import complete_events
from tracer.rules.nftables import live_watcher, netlink_dump, reconstruct
from tracer.rules.nftables.watcher import RulesetWatcher

POD = "pod-b"
"""The second namespace with rules."""
FEW, MANY = 30, 100
"""Packets a ruleset: of a short run, of a long one."""
BATCH = 10
"""So many packets are sent before events and messages are read."""
REPLACE_SECONDS = 0.2
QUIET_SECONDS, QUIET_WITHIN = 0.1, 5
"""The accounts begin and end where nothing came for so long; that is waited for so many seconds."""
SHOWN, SHOWN_CHARACTERS = 30, 400
NOT_READ = "the rules of generation"
_KERNELS_OWN = ("ACCEPT", "DROP", "RETURN", "CONTINUE", "QUEUE", "STOLEN")
"""What is told of a rule that could not be read is the kernel's verdict itself."""
_DID = {"REJECT": "DROP", "NFQUEUE": "QUEUE", "FWD": "STOLEN"} | dict.fromkeys(
    ("MARK", "CONNMARK", "LOG", "NFLOG", "SET", "DUP", "TEE"), "CONTINUE"
)
Account = tuple[int, str, trace.Header, tuple[trace.Step, ...]]
"""Of one run: namespace, table, header, steps."""
Check = Callable[[Event, RuleTrace], str]
Found = tuple[Event, Event, str, RuleTrace]
"""The event that shows the packet's header, the one of the chain's run, the table, the walk."""


class Rules(Protocol):
    """Random rules of one back end."""

    def restore(self, random: Random, home: bool, big: bool) -> None:
        """Puts random rules in force in this thread's namespace, the pod's first, then the node's (home). big: with a chain of
        2,000 rules."""

    def again(self, random: Random) -> None:
        """Replaces a part of the node's by others."""

    def check(self, e: Event, trace: RuleTrace) -> str:
        """What is wrong with texts and elements of a walk; "" when nothing is."""


def _header(e: Event) -> trace.Header:
    # What stands where an echo has its id is something else in other messages; the kernel's account leaves it out.
    sport = e.sport if e.protocol not in (1, 58) or e.dport >> 8 in trace.ECHOES else 0
    return record.address(e.src), record.address(e.dst), e.protocol, sport, e.dport


def _neighbours(header: trace.Header) -> bool:
    """Neighbour discovery, and who listens to which group, which comes when it likes: also between the moments when the two
    accounts begin."""
    return header[1].startswith("ff02:") or (header[2] == 58 and header[4] >> 8 in range(130, 144))


def _did(hit: RuleHit) -> str:
    """The kernel's word for what a visit did: DNAT and the like accept, MARK and the like go on."""
    word = hit.verdict
    if hit.rule is None or word.startswith(("JUMP ", "GOTO ")) or word in _KERNELS_OWN:
        return word
    return _DID.get(word, "ACCEPT")


def _steps(walk: RuleTrace) -> tuple[trace.Step, ...]:
    return tuple((v.location.chain, v.rule.handle if v.rule else 0, _did(v)) for v in walk.hits)


def traces(batches: list[Any], spaces: Collection[int], watch: RulesetWatcher) -> Iterator[Found]:
    """Every chain run in these namespaces, with its walk."""
    packets: dict[int, list[Any]] = {}
    for e in (e for batch in batches for e in record.events(batch)):
        packets.setdefault(e.packet, []).append(e)
    for events in packets.values():
        events.sort(key=lambda e: e.time)
        found, seen, copy = reconstruct.runs(events), None, None
        for e in complete_events([e for e in events if e.kind not in record.PARTS])[0]:
            if not e.flags & (Flag.FLAG_NO_HEADER | Flag.FLAG_CLONE):
                seen = e
            # A copy has a header of its own; but of a packet out of fragments the fragments are copies. The run that drops a
            # copy has no header: it is the copy's last one.
            if e.flags & Flag.FLAG_CLONE and not e.flags & (Flag.FLAG_NO_HEADER | Flag.FLAG_FRAGMENT):
                copy = e
            own = copy if e.flags & Flag.FLAG_CLONE and not e.flags & Flag.FLAG_FRAGMENT and copy else seen
            if e.kind == Kind.EVENT_CHAIN and e.netns in spaces and own:
                run = found[reconstruct.run_key(e)]
                table = reconstruct.names(e, run, watch)[0] or e.table.split(b"\0")[0].decode() + record.CUT * (e.manip & 1)
                yield own, e, table, reconstruct.reconstruct(e, run, watch)


class Bench:
    """The running tracer, and two namespaces with rules: the node's and a pod's."""

    def __init__(self, session: Session, watch: RulesetWatcher, uplink: str) -> None:
        self.session, self.watch = session, watch
        names = Namespaces()
        self._devices = {POD: "eth0", None: uplink}
        self._inodes = {POD: (RUN_DIR / POD).stat().st_ino, None: names.own}
        with entered(POD):
            watch.poll(netns.identity(self._inodes[POD], netns_cookie.cookie()))
        self.packets = self.rules = self.mismatches = self.undecided = 0

    def round(self, random: Random, count: int, made: Rules, changing: bool = False, big: bool = False) -> None:
        """One ruleset and some packets. changing: a part of the rules is replaced all the time. big: see Rules."""
        with ExitStack() as stack:
            listeners = {}
            for space, inode in self._inodes.items():
                with entered(space):
                    rules.flush() if space is None else subprocess.run(["nft", "flush", "ruleset"], check=True)
                    made.restore(random, space is None, big and space is None)
                    listeners[inode] = stack.enter_context(trace.listening(self._devices[space]))
            self._settle()
            _, before, _ = self._until_quiet(listeners)
            begin, batches = time.monotonic_ns(), before[-1:]
            self.session.losses()
            true: list[tuple[int, trace.Run]] = []
            if changing:
                stack.enter_context(_replacing(made, Random(random.random())))
            with closing(Sender()) as sender:
                for number in range(count):
                    sender.send(random)
                    time.sleep(0.002)
                    if number % BATCH == BATCH - 1:
                        batches.append(self.session.events())
                        true += [(inode, run) for inode, listener in listeners.items() for run in listener.read(0.001)]
            last_true, last_batches, end = self._until_quiet(listeners)
            true, batches = true + last_true, batches + last_batches
            losses = self.session.losses()
            self._wait_for(batches)
            found = list(traces(batches, self._inodes.values(), self.watch))
        if losses or any(listener.lost for listener in listeners.values()):
            print("something was lost, so this round proves nothing:", losses)
            return
        self.packets += count
        self.rules += sum(len(run.steps) for _, run in true)
        self._compare(true, found, made.check, changing, (begin, end), batches)

    def _settle(self) -> None:
        """Waits until the rulesets in force have been read."""
        until = time.monotonic() + 60
        for space, inode in self._inodes.items():
            with entered(space), Nfnetlink() as nfnetlink:
                now, named = netlink_dump.generation(nfnetlink), netns.identity(inode, netns_cookie.cookie())
            while not self.watch.find(named, now):
                self.watch.is_coming(named, now)
                assert time.monotonic() < until, "the ruleset was not read"
                time.sleep(0.02)

    def _until_quiet(self, listeners: dict[int, trace.Listener]) -> tuple[list[tuple[int, trace.Run]], list[Any], int]:
        """What both accounts have until neither has anything more, or time is up; and when the last reading of them began.

        They are read one after the other, so a packet between the two may be in the tracer's only: an answer that is sent
        again, an error that waited for a neighbour's address.
        """
        true: list[tuple[int, trace.Run]] = []
        batches: list[Any] = []
        until = time.monotonic() + QUIET_WITHIN
        while True:
            began = time.monotonic_ns()
            came = [(inode, run) for inode, listener in listeners.items() for run in listener.read(QUIET_SECONDS)]
            batch = self.session.events()
            true += came
            batches.append(batch)
            if (not came and not len(batch)) or time.monotonic() > until:
                return true, batches, began

    def _wait_for(self, batches: list[Any]) -> None:
        """Gives the reader time for the generations that packets met, as a run does."""
        met = {g for batch in batches for g in reconstruct.generations(record.events(batch))}
        until = time.monotonic() + 10
        while any([self.watch.is_coming(*g) for g in met]) and time.monotonic() < until:
            time.sleep(0.02)

    def _compare(
        self,
        true: list[tuple[int, trace.Run]],
        found: list[Found],
        check: Check,
        changing: bool,
        span: tuple[int, int],
        batches: list[Any],
    ) -> None:
        """span: of the tracer's runs within these times (ns) the kernel's account was read, too; of others it may have been.
        The tracer's account was read before and after the kernel's, so all that the kernel says must be in it."""
        # The table that turns the trace on stands before fragments are put together: they have no headers to compare.
        said: Counter[Account] = Counter(
            (inode, r.table, r.header, tuple(r.steps))
            for inode, r in true
            if r.table not in (trace.TABLE, trace.DEVICE_TABLE) and not _neighbours(r.header)
        )
        ours: Counter[Account] = Counter()
        around: Counter[Account] = Counter()
        packets: dict[Account, int] = {}
        for seen, e, table, walk in found:
            if table in (trace.TABLE, trace.DEVICE_TABLE) or _neighbours(_header(seen)):
                continue
            account = e.netns, table, _header(seen), _steps(walk)
            (ours if span[0] <= e.time <= span[1] else around)[account] += 1
            packets[account] = e.packet
            if e.time < span[0]:
                continue  # its first records may be of before
            if changing and NOT_READ in walk.undecided:
                self.undecided += 1  # the steps must be right all the same
                continue
            wrong = walk.undecided or check(seen._replace(time=e.time), walk)
            if wrong:
                self._object(f"{wrong}: {walk}")
        only_said, only_ours = said - ours, ours - said
        for account in sorted(only_said.elements(), key=_left_open):
            for some in (only_ours, around):
                match = next((o for o in some if some[o] and _may_be(account, o)), None)
                if match:
                    some[match] -= 1
                    break
            else:
                self._object(f"only the kernel says {account}")
        for account in only_ours.elements():
            self._object(f"only the tracer says {account}")
            if self.mismatches <= SHOWN:
                print(_events(batches, packets[account]), file=sys.stderr)

    def _object(self, what: str) -> None:
        self.mismatches += 1
        if self.mismatches <= SHOWN:
            print(what[:SHOWN_CHARACTERS], file=sys.stderr)


def _may_be(said: Account, ours: Account) -> bool:
    """Whether two accounts differ in nothing but what the kernel's leaves open of the header, and ours of a long name."""
    same = all(a in (b, trace.UNTOLD) for a, b in zip(said[2][2:], ours[2][2:], strict=True))
    same = same and _within(ours[2][0], said[2][0]) and _within(ours[2][1], said[2][1])
    steps = list(zip(said[3], ours[3], strict=False))
    same = same and said[0] == ours[0] and _same_name(said[1], ours[1]) and len(said[3]) == len(ours[3])
    return same and all(s[1] == o[1] and _same_name(s[0], o[0]) and _same_name(s[2], o[2]) for s, o in steps)


def _within(address: str, said: str) -> bool:
    """Whether an address is the kernel's, or may be the one of which its account has only the beginning, as a network."""
    return address == said or ("/" in said and ip_address(address) in ip_network(said))


def _events(batches: list[Any], packet: int) -> str:
    """The events of one packet, a line each."""
    events = sorted((e for b in batches for e in record.events(b) if e.packet == packet), key=lambda e: e.time)
    return "\n".join(
        f"    {e.time} {Kind(e.kind).name} hook={e.hook} flags={e.flags} {_header(e)} netns={e.netns} {e.table!r}"
        for e in events
        if e.kind not in record.PARTS
    )


def _left_open(said: Account) -> int:
    """How much the kernel's account leaves open of a header."""
    return sum(part == trace.UNTOLD or "/" in str(part) for part in said[2])


def _same_name(whole: str, told: str) -> bool:
    return whole == told or (told.endswith(record.CUT) and whole.startswith(told[:-1]))


@contextmanager
def _replacing(made: Rules, random: Random) -> Iterator[None]:
    """A part of the rules is replaced again and again within the block."""
    ended = threading.Event()

    def replace() -> int:
        times = 0
        while not ended.wait(REPLACE_SECONDS):
            made.again(random)
            times += 1
        return times

    with ThreadPoolExecutor(1) as pool:
        times = pool.submit(replace)
        try:
            yield
        finally:
            ended.set()
        print(f"rules were replaced {times.result()} times", flush=True)


@contextmanager
def bench(session: Session | None = None) -> Iterator[Bench]:
    """A node without rules, and the tracer on it: the one given, or a new one."""
    node = Node(bridge_nf=False)
    with node, marked.sockets():
        for address in (NODE4, NODE6, *(p.addr4 for p in PODS), *(p.addr6 for p in PODS)):
            subprocess.run(["ip", "netns", "exec", "client", "ping", "-c1", "-W1", address], stdout=subprocess.DEVNULL)
        subprocess.run(["nft", "list", "ruleset"], check=True, stdout=subprocess.DEVNULL)
        nfnetlink.conntrack_flush()
        own = Namespaces().own
        if session:
            session.set_filter(Filter())
            with live_watcher.watching(own) as watch:
                yield Bench(session, watch, node.uplink)
        else:
            kernel = Kernel.running()
            with Session(kernel, Filter()) as new, live_watcher.watching(own) as watch:
                yield Bench(new, watch, node.uplink)
        rules.flush()


def run(packets: int, seed: int, made: Rules, session: Session | None = None) -> tuple[int, int, int]:
    """Packets compared, rules that acted on them, and what did not agree. In every fourth round rules change under way."""
    random = Random(seed)
    each = MANY if packets > 3 * MANY else FEW
    with bench(session) as b:
        for tried in range(3 * packets // each + 3):
            if b.packets >= packets:
                break
            b.round(random, min(each, packets - b.packets), made, tried % 4 == 1, each == MANY and tried % 8 == 4)
            if packets > 3 * MANY:
                print(
                    f"after {b.packets} packets: rules={b.rules} undecided={b.undecided} mismatches={b.mismatches}", flush=True
                )
        return b.packets, b.rules, b.mismatches
