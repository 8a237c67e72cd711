# SPDX-License-Identifier: Apache-2.0
"""Sends random packets through random rules, and compares the tracer's result with the kernel's own trace."""

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
from tracer.events.record import Event, EventRow, Flag, Kind
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
"""Packets per ruleset: in a short run, in a long one."""
BATCH = 10
"""Packets that are sent before events and messages are read."""
REPLACE_SECONDS = 0.2
QUIET_SECONDS, QUIET_WITHIN = 0.1, 5
"""The accounts begin and end where nothing came for QUIET_SECONDS; the longest wait for that is QUIET_WITHIN seconds."""
SHOWN, SHOWN_CHARACTERS = 30, 400
NOT_READ = "the rules of generation"
_KERNELS_OWN = ("ACCEPT", "DROP", "RETURN", "CONTINUE", "QUEUE", "STOLEN")
"""For a rule that could not be read, the kernel's verdict itself is reported."""
_KERNEL_VERDICTS = {"REJECT": "DROP", "NFQUEUE": "QUEUE", "FWD": "STOLEN"} | dict.fromkeys(
    ("MARK", "CONNMARK", "LOG", "NFLOG", "SET", "DUP", "TEE"), "CONTINUE"
)
Account = tuple[int, str, trace.Header, tuple[trace.Step, ...]]
"""One run: namespace, table, header, steps."""
Check = Callable[[Event, RuleTrace], str]
TracedRun = tuple[Event, Event, str, RuleTrace]
"""The event that shows the packet's header, the event of the chain's run, the table, the rule trace."""


class Rules(Protocol):
    """Random rules of one back end."""

    def restore(self, random: Random, home: bool, big: bool) -> None:
        """Puts random rules in force in this thread's namespace: the pod's first, then the node's (home). big: with a chain of
        2,000 rules."""

    def replace_part(self, random: Random) -> None:
        """Replaces a part of the node's rules by others."""

    def check(self, e: Event, trace: RuleTrace) -> str:
        """What is wrong with texts and elements of a rule trace; "" when nothing is."""


def _header(e: Event) -> trace.Header:
    # The bytes of an echo's id have another meaning in other messages; the kernel's account leaves them out.
    sport = e.sport if e.protocol not in (1, 58) or e.dport >> 8 in trace.ECHOES else 0
    return record.address(e.src), record.address(e.dst), e.protocol, sport, e.dport


def _is_discovery(header: trace.Header) -> bool:
    """Whether this is neighbour or multicast listener discovery, which comes at any time: also between the starts of the two
    accounts."""
    return header[1].startswith("ff02:") or (header[2] == 58 and header[4] >> 8 in range(130, 144))


def _kernel_verdict(hit: RuleHit) -> str:
    """The kernel's word for what a hit did: DNAT and the like accept, MARK and the like continue."""
    word = hit.verdict
    if hit.rule is None or word.startswith(("JUMP ", "GOTO ")) or word in _KERNELS_OWN:
        return word
    return _KERNEL_VERDICTS.get(word, "ACCEPT")


def _steps(rule_trace: RuleTrace) -> tuple[trace.Step, ...]:
    return tuple((v.location.chain, v.rule.handle if v.rule else 0, _kernel_verdict(v)) for v in rule_trace.hits)


def traces(batches: list[Any], spaces: Collection[int], watch: RulesetWatcher) -> Iterator[TracedRun]:
    """Every chain run in these namespaces, with its rule trace."""
    packets: dict[int, list[EventRow]] = {}
    for e in (e for batch in batches for e in record.events(batch)):
        packets.setdefault(e.packet, []).append(e)
    for events in packets.values():
        events.sort(key=lambda e: e.time)
        found, seen, copy = reconstruct.runs(events), None, None
        for e in complete_events([e for e in events if isinstance(e, Event)])[0]:
            if not e.flags & (Flag.FLAG_NO_HEADER | Flag.FLAG_CLONE):
                seen = e
            # A copy has its own header; but of a reassembled packet the fragments are copies. The run that drops a copy has no
            # header: the copy's last header holds.
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

    def round(self, random: Random, count: int, random_rules: Rules, changing: bool = False, big: bool = False) -> None:
        """Runs one ruleset and some packets. changing: a part of the rules is replaced repeatedly. big: see Rules."""
        with ExitStack() as stack:
            listeners = {}
            for space, inode in self._inodes.items():
                with entered(space):
                    rules.flush() if space is None else subprocess.run(["nft", "flush", "ruleset"], check=True)
                    random_rules.restore(random, space is None, big and space is None)
                    listeners[inode] = stack.enter_context(trace.listening(self._devices[space]))
            self._settle()
            _, before, _ = self._until_quiet(listeners)
            begin, batches = time.monotonic_ns(), before[-1:]
            self.session.losses()
            kernel_runs: list[tuple[int, trace.Run]] = []
            if changing:
                stack.enter_context(_replacing(random_rules, Random(random.random())))
            with closing(Sender()) as sender:
                for number in range(count):
                    sender.send(random)
                    time.sleep(0.002)
                    if number % BATCH == BATCH - 1:
                        batches.append(self.session.events())
                        kernel_runs += [(inode, run) for inode, listener in listeners.items() for run in listener.read(0.001)]
            last_kernel_runs, last_batches, end = self._until_quiet(listeners)
            kernel_runs, batches = kernel_runs + last_kernel_runs, batches + last_batches
            losses = self.session.losses()
            self._wait_for(batches)
            traced = list(traces(batches, self._inodes.values(), self.watch))
        if losses or any(listener.lost for listener in listeners.values()):
            print("something was lost, so this round proves nothing:", losses)
            return
        self.packets += count
        self.rules += sum(len(run.steps) for _, run in kernel_runs)
        self._compare(kernel_runs, traced, random_rules.check, changing, (begin, end), batches)

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
        """Reads both accounts until neither has anything more, or time is up; also returns when their last reading began.

        They are read one after the other, so a packet between the two readings may be in the tracer's only: a retransmitted
        answer, an error that waited for a neighbour's address.
        """
        kernel_runs: list[tuple[int, trace.Run]] = []
        batches: list[Any] = []
        until = time.monotonic() + QUIET_WITHIN
        while True:
            began = time.monotonic_ns()
            new_runs = [(inode, run) for inode, listener in listeners.items() for run in listener.read(QUIET_SECONDS)]
            batch = self.session.events()
            kernel_runs += new_runs
            batches.append(batch)
            if (not new_runs and not len(batch)) or time.monotonic() > until:
                return kernel_runs, batches, began

    def _wait_for(self, batches: list[Any]) -> None:
        """Gives the reader time for the generations that packets met, as a run does."""
        met = {g for batch in batches for g in reconstruct.generations(record.events(batch))}
        until = time.monotonic() + 10
        while any([self.watch.is_coming(*g) for g in met]) and time.monotonic() < until:
            time.sleep(0.02)

    def _compare(
        self,
        kernel_runs: list[tuple[int, trace.Run]],
        traced: list[TracedRun],
        check: Check,
        changing: bool,
        span: tuple[int, int],
        batches: list[Any],
    ) -> None:
        """span: for the tracer's runs within these times (ns) the kernel's account was read, too; for others it may have been.
        The tracer's account was read before and after the kernel's, so it must have all that the kernel's has."""
        # The table that turns the trace on runs before reassembly: fragments have no headers to compare.
        in_kernel: Counter[Account] = Counter(
            (inode, r.table, r.header, tuple(r.steps))
            for inode, r in kernel_runs
            if r.table not in (trace.TABLE, trace.DEVICE_TABLE) and not _is_discovery(r.header)
        )
        in_tracer: Counter[Account] = Counter()
        outside: Counter[Account] = Counter()
        packets: dict[Account, int] = {}
        for seen, e, table, rule_trace in traced:
            if table in (trace.TABLE, trace.DEVICE_TABLE) or _is_discovery(_header(seen)):
                continue
            account = e.netns, table, _header(seen), _steps(rule_trace)
            (in_tracer if span[0] <= e.time <= span[1] else outside)[account] += 1
            packets[account] = e.packet
            if e.time < span[0]:
                continue  # its first events may be from before the span
            if changing and NOT_READ in rule_trace.undecided:
                self.undecided += 1  # the steps must still be right
                continue
            wrong = rule_trace.undecided or check(seen._replace(time=e.time), rule_trace)
            if wrong:
                self._report_mismatch(f"{wrong}: {rule_trace}")
        only_in_kernel, only_in_tracer = in_kernel - in_tracer, in_tracer - in_kernel
        for account in sorted(only_in_kernel.elements(), key=_left_open):
            for some in (only_in_tracer, outside):
                match = next((o for o in some if some[o] and _may_be_same(account, o)), None)
                if match:
                    some[match] -= 1
                    break
            else:
                self._report_mismatch(f"only the kernel has {account}")
        for account in only_in_tracer.elements():
            self._report_mismatch(f"only the tracer has {account}")
            if self.mismatches <= SHOWN:
                print(_events(batches, packets[account]), file=sys.stderr)

    def _report_mismatch(self, what: str) -> None:
        self.mismatches += 1
        if self.mismatches <= SHOWN:
            print(what[:SHOWN_CHARACTERS], file=sys.stderr)


def _may_be_same(kernel: Account, traced: Account) -> bool:
    """Whether two accounts differ only in what the kernel's leaves open of the header, and the tracer's of a long name."""
    same = all(a in (b, trace.UNKNOWN) for a, b in zip(kernel[2][2:], traced[2][2:], strict=True))
    same = same and _within(traced[2][0], kernel[2][0]) and _within(traced[2][1], kernel[2][1])
    steps = list(zip(kernel[3], traced[3], strict=False))
    same = same and kernel[0] == traced[0] and _same_name(kernel[1], traced[1]) and len(kernel[3]) == len(traced[3])
    return same and all(s[1] == o[1] and _same_name(s[0], o[0]) and _same_name(s[2], o[2]) for s, o in steps)


def _within(address: str, kernel_address: str) -> bool:
    """Whether an address is the kernel's, or lies in the network that the kernel's account has instead of a whole address."""
    return address == kernel_address or ("/" in kernel_address and ip_address(address) in ip_network(kernel_address))


def _events(batches: list[Any], packet: int) -> str:
    """The events of one packet, a line each."""
    events = sorted((e for b in batches for e in record.events(b) if e.packet == packet), key=lambda e: e.time)
    return "\n".join(
        f"    {e.time} {Kind(e.kind).name} hook={e.hook} flags={e.flags} {_header(e)} netns={e.netns} {e.table!r}"
        for e in events
        if isinstance(e, Event)
    )


def _left_open(account: Account) -> int:
    """How many parts of a header the kernel's account leaves open."""
    return sum(part == trace.UNKNOWN or "/" in str(part) for part in account[2])


def _same_name(whole: str, shown: str) -> bool:
    return whole == shown or (shown.endswith(record.CUT) and whole.startswith(shown[:-1]))


@contextmanager
def _replacing(random_rules: Rules, random: Random) -> Iterator[None]:
    """Within the block, a part of the rules is replaced repeatedly."""
    ended = threading.Event()

    def replace() -> int:
        times = 0
        while not ended.wait(REPLACE_SECONDS):
            random_rules.replace_part(random)
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
    """A node without rules, and the tracer on it: the given session, or a new one."""
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


def run(packets: int, seed: int, random_rules: Rules, session: Session | None = None) -> tuple[int, int, int]:
    """Returns packets compared, rules that acted on them, and mismatches. In every fourth round rules change meanwhile."""
    random = Random(seed)
    each = MANY if packets > 3 * MANY else FEW
    with bench(session) as b:
        for tried in range(3 * packets // each + 3):
            if b.packets >= packets:
                break
            b.round(random, min(each, packets - b.packets), random_rules, tried % 4 == 1, each == MANY and tried % 8 == 4)
            if packets > 3 * MANY:
                print(
                    f"after {b.packets} packets: rules={b.rules} undecided={b.undecided} mismatches={b.mismatches}", flush=True
                )
        return b.packets, b.rules, b.mismatches
