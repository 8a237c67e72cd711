# SPDX-License-Identifier: Apache-2.0
"""Packets in a queue (NFQUEUE): the time in it, the answer of its process, and why it did not take or keep a packet."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from scenes import netns, nfqueue, traffic
from scenes.netns import Child
from scenes.nfqueue import ACCEPT, DROP, REPEAT, Options
from scenes.topology import CLIENT, DRAIN4, NODE4, PODS
from tests.kernel.captured import check_same_output
from tests.kernel.recorder import Recorder
from tests.kernel.watching import Watch
from tracer.findings import Findings
from tracer.model.filter import Filter
from tracer.model.hop import DecisionDetail, DetailHop
from tracer.model.packet import Outcome, Packet
from tracer.packets.queue_details import is_of_queue

QUEUE, PORT = 41, 9410
TO_QUEUE = f"udp dport {PORT} queue to {QUEUE}"
BYPASS = f"udp dport {PORT} queue flags bypass to {QUEUE}"
FORWARD = "forward priority -5"
DELAY_SECONDS = 0.03
PLAIN = Options()
POD, SENT_BYTES = PODS[0], 200_000
GONE, GONE4 = "gone0", "203.0.114.9"
"""An interface that goes down, and an address behind it."""
NO_TIME = 1_000_000_000
"""Longer than a packet waits for a process that answers at once, ns."""


def nft(text: str) -> None:
    subprocess.run(["nft", "-f", "-"], input=text.encode(), check=True)


@contextmanager
def table(*chains: tuple[str, str]) -> Iterator[None]:
    """Chains of (hook with priority, rule)."""
    text = "".join(
        f"chain c{number} {{ type filter hook {hook}; policy accept; {rule}; }}\n" for number, (hook, rule) in enumerate(chains)
    )
    nft(f"table ip inspector {{\n{text}}}\n")
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "ip", "inspector"], check=False, capture_output=True)


def send(count: int = 1, address: str = DRAIN4) -> None:
    """Sends datagrams from the client, which the node forwards."""
    with netns.entered(CLIENT):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        for number in range(count):
            sender.sendto(bytes([number]) * 20, (address, PORT))
            time.sleep(0.02)


@contextmanager
def bound(options: Options = PLAIN, *answers: int) -> Iterator[Child[None]]:
    """A process behind the queue. answers: the first ones; the last one is repeated."""
    left = list(answers)
    child = nfqueue.start(
        QUEUE, decide=(lambda packet: left.pop(0) if left[1:] else left[0]) if left else None, options=options
    )
    try:
        yield child
    finally:
        child.kill()


def details(packet: Packet) -> list[DecisionDetail]:
    return [h.detail for h in packet.hops if isinstance(h, DetailHop) and is_of_queue(h.detail)]


def findings(packets: list[Packet]) -> list[tuple[str, bool]]:
    made = Findings()
    for packet in packets:
        made.look(packet)
    for each in made.all:
        print(each.name, each.certain, each.cause, *each.proofs, sep="\n    ")
    return sorted((each.name, each.certain) for each in made.all)


def shown(packets: list[Packet]) -> None:
    for packet in packets:
        print(packet.outcome, packet.verdict)
        for hop in packet.hops:
            print("   ", hop.kind, hop.netns, hop.hook, getattr(hop, "verdict", ""), getattr(hop, "detail", ""))


def requests(packets: list[Packet]) -> list[Packet]:
    shown(packets)
    found = [p for p in packets if p.protocol == "UDP"]
    assert all(p.complete for p in found)
    return found


@pytest.mark.matrix
def test_an_answer(watch: Watch) -> None:
    for answer, outcome in ((DROP, Outcome.DROPPED), (ACCEPT, Outcome.FORWARDED)):
        with table((FORWARD, TO_QUEUE)), bound(Options(delay_seconds=DELAY_SECONDS), answer) as process:
            with watch(Filter(ports=(PORT,)), nft=True) as seen:
                send()
            (packet,) = requests(seen.packets)
            (detail,) = details(packet)
            waited = detail.number("waited_ns")
            verdict = {DROP: "DROP", ACCEPT: "ACCEPT"}[answer]
            who = {"queue": QUEUE, "verdict": verdict, "by": "process", "pid": process.pid, "process": "scene-queue"}
            assert detail.facts == {**who, "waited_ns": waited}
            assert DELAY_SECONDS * 1e9 <= waited < DELAY_SECONDS * 1e9 + NO_TIME
            assert packet.outcome is outcome
        if answer == DROP:
            assert packet.verdict == f"DROPPED behind queue {QUEUE} (NFQUEUE): pid {process.pid} scene-queue answered DROP"
            assert findings(seen.packets) == [("dropped_by_queue", True)]
        else:
            assert findings(seen.packets) == []


def test_an_answer_to_repeat(watch: Watch) -> None:
    """The rule hands the packet to the queue once more."""
    with table((FORWARD, TO_QUEUE)), bound(Options(), REPEAT, ACCEPT), watch(Filter(ports=(PORT,)), nft=True) as seen:
        send()
    (packet,) = requests(seen.packets)
    assert [d.facts["verdict"] for d in details(packet)] == ["REPEAT", "ACCEPT"] and packet.outcome is Outcome.FORWARDED
    assert findings(seen.packets) == []


@pytest.mark.matrix
def test_a_process_ends_while_packets_wait(watch: Watch) -> None:
    with table((FORWARD, TO_QUEUE)), bound(Options(silent=True)) as process, watch(Filter(ports=(PORT,)), nft=True) as seen:
        send(3)
        os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.5)
    packets = requests(seen.packets)
    assert [p.verdict for p in packets] == [
        f"DROPPED behind queue {QUEUE} (NFQUEUE): its process ended or let go of it, and the kernel drops what waits"
    ] * 3
    assert {d.facts["by"] for p in packets for d in details(p)} == {"process ended"}
    assert findings(seen.packets) == [("dropped_by_queue", True)]


@pytest.fixture
def gone() -> Iterator[None]:
    """An interface behind which GONE4 is, for the node and the client."""
    for command in (f"link add {GONE} type dummy", f"link set {GONE} up", f"route add {GONE4}/32 dev {GONE}",
                    f"-n {CLIENT} route replace {GONE4}/32 via {NODE4}"):  # fmt: skip
        subprocess.run(["ip", *command.split()], check=True)
    yield
    for command in (f"link del {GONE}", f"-n {CLIENT} route del {GONE4}/32"):
        subprocess.run(["ip", *command.split()], check=True)


def test_an_interface_goes_down_while_packets_wait(watch: Watch, gone: None) -> None:
    with table((FORWARD, TO_QUEUE)), bound(Options(silent=True)), watch(Filter(ports=(PORT,)), nft=True) as seen:
        send(2, GONE4)
        subprocess.run(["ip", "link", "set", GONE, "down"], check=True)
    packets = requests(seen.packets)
    assert {d.facts["by"] for p in packets for d in details(p)} == {"interface down"} and len(packets) == 2
    assert findings(seen.packets) == [("dropped_by_queue", True)]


def test_rules_are_removed_while_packets_wait(watch: Watch) -> None:
    with table((FORWARD, TO_QUEUE)), bound(Options(silent=True)), watch(Filter(ports=(PORT,)), nft=True) as seen:
        send(2)
        subprocess.run(["nft", "delete", "table", "ip", "inspector"], check=True)
    packets = requests(seen.packets)
    assert {d.facts["by"] for p in packets for d in details(p)} == {"rules removed"} and len(packets) == 2
    assert findings(seen.packets) == [("dropped_by_queue", True)]


@pytest.mark.matrix
def test_a_full_queue(watch: Watch) -> None:
    with table((FORWARD, TO_QUEUE)), bound(Options(silent=True, maximum=2)), watch(Filter(ports=(PORT,)), nft=True) as seen:
        send(5)
    packets = requests(seen.packets)
    assert [p.outcome for p in packets] == [Outcome.STOLEN] * 2 + [Outcome.DROPPED] * 3
    full = f"DROPPED at queue {QUEUE} (NFQUEUE), which is full: 2 packets wait, maximum 2"
    assert {p.verdict for p in packets[2:]} == {full}
    assert findings(seen.packets) == [("queue_full", True)]


def test_a_queue_that_is_full_and_lets_pass(watch: Watch) -> None:
    with (
        table((FORWARD, TO_QUEUE)),
        bound(Options(silent=True, maximum=2, fail_open=True)),
        watch(Filter(ports=(PORT,)), nft=True) as seen,
    ):
        send(4)
    packets = requests(seen.packets)
    assert [p.outcome for p in packets] == [Outcome.STOLEN] * 2 + [Outcome.FORWARDED] * 2
    facts = [d.facts for p in packets for d in details(p)]
    assert [(f["by"], f["verdict"]) for f in facts] == [("queue full", "ACCEPT")] * 2
    assert findings(seen.packets) == []


def test_a_full_receive_buffer(watch: Watch) -> None:
    with (
        table((FORWARD, TO_QUEUE)),
        bound(Options(silent=True, buffer_bytes=4096)),
        watch(Filter(ports=(PORT,)), nft=True) as seen,
    ):
        send(20)
    packets = requests(seen.packets)
    dropped = [p for p in packets if p.outcome is Outcome.DROPPED]
    assert 0 < len(dropped) < len(packets) == 20
    assert {p.verdict for p in dropped} == {f"DROPPED at queue {QUEUE} (NFQUEUE): the receive buffer of its process is full"}
    assert findings(seen.packets) == [("queue_full", True)]


@pytest.mark.matrix
def test_no_process(watch: Watch) -> None:
    for rule, outcome in ((TO_QUEUE, Outcome.DROPPED), (BYPASS, Outcome.FORWARDED)):
        with table((FORWARD, rule)), watch(Filter(ports=(PORT,)), nft=True) as seen:
            send()
        (packet,) = requests(seen.packets)
        assert packet.outcome is outcome and [d.facts["by"] for d in details(packet)] == ["no process"]
        if outcome is Outcome.DROPPED:
            assert packet.verdict == f"DROPPED at queue {QUEUE} (NFQUEUE): no process listens"
            assert findings(seen.packets) == [("nfqueue_unattended", True)]
        else:
            assert findings(seen.packets) == []


@pytest.mark.matrix
def test_a_later_chain_drops_what_the_process_accepted(watch: Watch) -> None:
    with (
        table((FORWARD, TO_QUEUE), ("forward priority 5", f"udp dport {PORT} drop")),
        bound(),
        watch(Filter(ports=(PORT,)), nft=True) as seen,
    ):
        send()
    (packet,) = requests(seen.packets)
    assert [d.facts["verdict"] for d in details(packet)] == ["ACCEPT"]
    assert packet.verdict == "DROPPED in ip inspector/c1"
    assert findings(seen.packets) == []


def test_conntrack_drops_what_the_process_accepted(watch: Watch) -> None:
    """The queue comes before conntrack, and its table is full."""
    limit = "/proc/sys/net/netfilter/nf_conntrack_max"
    with open(limit, encoding="ascii") as file:
        before = file.read()

    def set_limit(text: str) -> None:
        with open(limit, "w", encoding="ascii") as file:
            file.write(text)

    with netns.entered(POD.name):
        listener = socket.create_server((POD.addr4, PORT))
    # Established connections: no entry can be evicted for the datagrams.
    kept = traffic.connections(POD.addr4, PORT, 3)
    with listener, kept, table(("prerouting priority -300", TO_QUEUE)), bound():
        set_limit("2")
        try:
            with watch(Filter(ports=(PORT,)), nft=True) as seen:
                send(3)
        finally:
            set_limit(before)
    packets = requests(seen.packets)
    dropped = [p for p in packets if p.outcome is Outcome.DROPPED]
    assert dropped and [d.facts["verdict"] for p in packets for d in details(p)] == ["ACCEPT"] * 3
    later = f"DROPPED in PREROUTING after queue {QUEUE} (NFQUEUE), which let it pass: by a later function of the hook"
    assert {p.verdict for p in dropped} == {later}
    assert not {name for name, _ in findings(seen.packets)} & {"dropped_by_queue", "queue_full", "nfqueue_unattended"}


@pytest.mark.matrix
def test_segments_of_a_packet_are_queued(watch: Watch) -> None:
    """The kernel cuts a packet for a process that does not want whole ones, and frees it when all parts are queued."""
    with ExitStack() as stack:
        stack.enter_context(table((FORWARD, f"tcp dport {PORT} queue to {QUEUE}")))
        stack.enter_context(bound())
        with netns.entered(POD.name):
            listener = stack.enter_context(socket.create_server((POD.addr4, PORT)))
        with netns.entered(CLIENT):
            client = stack.enter_context(socket.socket())
        with watch(Filter(ports=(PORT,)), nft=True) as seen:
            client.settimeout(20)
            client.connect((POD.addr4, PORT))
            server, _ = listener.accept()
            stack.enter_context(server)
            server.settimeout(20)
            sending = threading.Thread(target=client.sendall, args=(bytes(SENT_BYTES),))
            sending.start()
            left = SENT_BYTES
            while left:
                left -= len(server.recv(65536))
            sending.join()
    packets = [p for p in seen.packets if p.protocol == "TCP"]
    for packet in packets:
        print(packet.tcp_flags, packet.length, packet.outcome, packet.verdict)
    assert not any(p.outcome is Outcome.DROPPED for p in packets) and findings(packets) == []
    cut = {p.verdict for p in packets if p.length > 1500 and p.endpoints.dport == PORT}
    assert cut == {"taken over in FORWARD: queued in segments"}


def test_a_replay_prints_the_same(recorder: Recorder) -> None:
    def work() -> None:
        with table((FORWARD, TO_QUEUE)):
            with bound(PLAIN, DROP, ACCEPT):
                send(2)
            with bound(Options(silent=True, maximum=1)):
                send(2)
            time.sleep(0.5)
            send(1)

    made = recorder("queue", work, Filter(ports=(PORT,)))
    check_same_output(made)
    text = made.text.read_text()
    for words in ("scene-queue answered DROP after", "scene-queue answered ACCEPT after", "full: 1 packet waits, maximum 1",
                  "its process ended or let go of it", "no process listens"):  # fmt: skip
        assert words in text, text
