# SPDX-License-Identifier: Apache-2.0
"""The text format, on the packets of sample_packets.py."""

from __future__ import annotations

import errno
import io
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import sample_packets as samples
from tests.support.terminal import Terminal
from tracer import render
from tracer.errors import BadOption
from tracer.model.bpf_program import AttachedProgram
from tracer.model.check import CheckResult
from tracer.model.endpoints import Endpoints
from tracer.model.hop import DecisionDetail, DetailHop, Drop, Nat, NatHop, Socket
from tracer.model.kube import Owner
from tracer.model.namespace_name import HOST, Netns
from tracer.model.packet import Outcome, Packet
from tracer.model.summary import RunSummary
from tracer.render.text import TextOutput

CODE = re.compile(r"\x1b\[[0-9;]*m")


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def written(packet: Packet, verbose: bool = False, out: io.StringIO | None = None) -> list[str]:
    out = out or io.StringIO()
    TextOutput(out, io.StringIO(), verbose).packet(packet)
    return out.getvalue().splitlines()


def test_formats_are_found_by_name() -> None:
    assert {"json", "text"} <= {*render.FORMATS} and "base" not in render.FORMATS
    assert render.find("text") is TextOutput
    with pytest.raises(BadOption, match=", ".join(render.FORMATS)):
        render.find("base")


def test_a_node_port_request() -> None:
    assert written(samples.node_port()) == [
        "14:03:22.118  TCP 192.168.56.1:40812 -> 192.168.56.10:30285  SYN  60 B  node eth0  NEW",
        "    +0.01 ms  PREROUTING  DNAT         192.168.56.10:30285 -> 10.244.0.11:8080",
        "    +0.03 ms  POSTROUTING MASQUERADE   192.168.56.1:40812 -> 10.244.0.1:23711",
        "              in pod http-proxy",
        "    +0.06 ms              socket       LISTEN, nginx (pid 4242)",
        "    +0.12 ms              SYN          answered, accept queue 0/128, SYN queue 1",
        "          =>  SYN answered by pid 4242 nginx in pod http-proxy",
        "",
    ]


def test_owners_of_hops_and_ends() -> None:
    found = samples.node_port()
    service = Owner("Service", "default", "http-proxy", "http", "kube-proxy", "NodePort 30285", "pod default/web-a (node-1)")
    found = samples.with_hop(found, 2, owner=service)
    found = replace(found, src_owner=Owner("external"), dst_owner=replace(service, target=""))
    lines = written(found)
    assert lines[1] == " " * 14 + "external -> Service default/http-proxy:http, NodePort 30285"
    assert lines[2].endswith(
        "-> 10.244.0.11:8080  Service default/http-proxy:http, NodePort 30285 -> pod default/web-a (node-1)"
    )
    found = replace(found, src_owner=Owner("unknown"), dst_owner=Owner("unknown"))
    assert "unknown" not in written(found)[1], "an unknown owner is not printed"


def test_verbose_shows_every_hop() -> None:
    lines = written(samples.node_port(), verbose=True)
    assert len(lines) == 1 + 11 + 1 + 1 + 1  # header, hops, namespace, verdict, blank
    assert "    +0.01 ms  PREROUTING  nat          ACCEPT  eth0 -> here  mark 0x4000" in lines
    assert "    +0.02 ms  FORWARD     filter       ACCEPT  eth0 -> cni0  mark 0x4000" in lines


def test_a_reply_shows_the_ends_that_change_and_derived_hops() -> None:
    lines = written(samples.node_port_reply())
    assert lines[0].endswith("  SYN ACK  60 B  pod http-proxy eth0  ESTABLISHED reply")
    assert lines[1] == "              in node"
    assert lines[2] == "    +0.04 ms  PREROUTING  reverse MASQ 10.244.0.1:23711 -> 192.168.56.1:40812  (derived)"
    assert lines[3] == "    +0.06 ms  POSTROUTING reverse DNAT 10.244.0.11:8080 -> 192.168.56.10:30285"


def test_ipv6_ends_have_brackets_and_a_hook_does_not_repeat_its_chain() -> None:
    lines = written(samples.rejected())
    assert "TCP [fd00:10:244::17]:51514 -> [fd00:10:96::a3f1]:80  SYN" in lines[0]
    assert lines[1].endswith("OUTPUT      ip6 kube-proxy filter-output REJECT with icmp6-port-unreachable")
    assert lines[2].endswith("=>  REJECTED in ip6 kube-proxy/filter-output with icmp6-port-unreachable")
    assert len(lines) == 4


@pytest.mark.parametrize(("verdict", "reject"), [("REJECT", "icmp-port-unreachable"), ("DROP", "")])
@pytest.mark.parametrize("place", [{"what": "table", "table": "filter"}, {"what": "chain", "table": "ip f", "chain": "input"}])
def test_hops_that_only_carry_out_a_rules_verdict_are_not_printed(place: dict[str, str], verdict: str, reject: str) -> None:
    packet = samples.rejected()
    packet = replace(packet, hops=(samples.hop(0, hook="OUTPUT", verdict=verdict, reject=reject, **place), *packet.hops[1:]))
    assert [line.split()[0] for line in written(packet)[1:-1]] == ["+0.00", "=>"]
    assert len(written(packet, verbose=True)) == 1 + 3 + 1 + 1, "verbose prints all hops"
    other_drop = samples.hop(12, "drop", drop=Drop("NO_SOCKET", "tcp_v4_rcv"))
    other_hook = samples.hop(13, "hook", "POSTROUTING", verdict="DROP")
    lines = written(samples.with_hops(packet, other_drop, other_hook))
    assert len(lines) == 1 + 3 + 1 + 1
    assert lines[2].endswith("drop         NO_SOCKET in tcp_v4_rcv"), "a drop by another function is printed"
    assert lines[3].endswith("POSTROUTING hook         DROP"), "a drop in another hook is printed"


def test_a_hooks_drop_without_a_rule_is_printed() -> None:
    lines = written(samples.with_hop(samples.rejected(), 0, verdict="ACCEPT", reject=""))
    assert lines[1].endswith("OUTPUT      hook         DROP")
    assert lines[2].endswith("drop         NETFILTER_DROP in nf_hook_slow")
    assert len(lines) == 5


@pytest.mark.parametrize("drop", [Drop("TCP_RESET", "tcp_v4_rcv", True), Drop("", "skb_queue_purge", True)])
def test_benign_drops_are_not_printed(drop: Drop) -> None:
    packet = samples.node_port()
    before = written(packet)
    packet = samples.with_hops(packet, samples.hop(130, "drop", netns="pod http-proxy", drop=drop))
    assert written(packet) == before
    assert len(written(packet, verbose=True)) == len(written(samples.node_port(), verbose=True)) + 1
    packet = samples.with_hop(packet, -1, drop=replace(drop, after_socket=False))
    assert [line for line in written(packet) if line not in before] == [
        f"    +0.13 ms              drop         {f'{drop.reason} in {drop.function}'.strip()}"
    ], "benign only if a socket had taken the packet"


def test_the_program_that_dropped_a_packet() -> None:
    program = AttachedProgram("tc", 42, "cil_from_container", loader="Cilium", loader_evidence="process")
    lines = written(samples.dropped_by_program(program))
    named = "by eBPF program cil_from_container (id 42) at tc ingress of eth0, loaded by Cilium"
    assert f"TC_INGRESS in __netif_receive_skb_core, {named} (derived)" in " ".join(" ".join(lines).split())
    assert f"=>  DROPPED {named}" in [line.strip() for line in lines]
    several = " ".join(" ".join(written(samples.dropped_by_program(program, AttachedProgram("tcx", 43, "b")))).split())
    assert "2 candidates: eBPF program cil_from_container (id 42)" in several and "(derived)" not in several


def test_a_program_that_rewrote_and_redirected_a_packet() -> None:
    program = AttachedProgram("tc", 42, "cil_x", loader="Cilium", loader_evidence="process")
    named = "by eBPF program cil_x (id 42) at tc ingress of eth0, loaded by Cilium"
    text = " ".join(" ".join(written(samples.changed_by_program(program))).split())
    assert f"rewritten 192.168.56.10:30285 -> 10.244.0.11:8080, {named} (derived)" in text
    assert f"redirect to eth1 as received there, {named} (derived)" in text
    assert f"=> redirected to eth1 as received there, {named}" in text
    assert "(derived)" not in " ".join(written(samples.changed_by_program(program, is_observed=True)))


def test_a_full_queue_and_an_incomplete_packet() -> None:
    text = "\n".join(written(samples.full_queue()))
    assert "socket       LISTEN, process not found (inode 48213)" in text
    assert "SYN          refused, accept queue 129/128 (full), SYN queue 3" in text
    assert "     +1.20 s              drop         in tcp_conn_request" in text
    assert "=>  SYN dropped: accept queue 129/128  incomplete: some of its events were lost" in text


@pytest.mark.parametrize(
    ("facts", "expected"),
    [({"ipv4": "10.244.0.99"}, "ipv4 10.244.0.99, state 1"), ({"ipv6": "fe80::1"}, "ipv6 fe80::1, state 1"),
     ({"ipv4": "10.244.0.99", "ipv6": "af4:63::"}, "ipv4 10.244.0.99, state 1")],
)  # fmt: skip
def test_a_next_hop_has_one_address(facts: dict[str, str | int], expected: str) -> None:
    hop = DetailHop(0, HOST, detail=DecisionDetail("neighbour", {**facts, "state": 1}))
    packet = samples.with_hops(samples.ping(), hop)
    assert any(line.rstrip().endswith(f"neighbour    {expected}") for line in written(packet, verbose=True))


def test_the_answer_of_a_queue_is_shown_by_default() -> None:
    facts: dict[str, str | int] = {"queue": 100, "verdict": "ACCEPT", "by": "process", "pid": 219, "process": "knp"}
    hop = DetailHop(0, HOST, detail=DecisionDetail("queue-answer", facts | {"waited_ns": 1_200_000}))
    packet = samples.with_hops(samples.ping(), hop)
    assert any(line.rstrip().endswith("queue 100    pid 219 knp answered ACCEPT after 1.20 ms") for line in written(packet))


def test_what_a_socket_asked_for() -> None:
    facts = {"asked": "10.96.0.10:53", "changed": "by eBPF program x (id 1) at sendmsg4 of /, loaded by Cilium"}
    packet = samples.with_hops(samples.ping(), DetailHop(0, HOST, detail=DecisionDetail("connect", facts)))
    shown = " ".join(" ".join(written(packet)).split())
    assert f"connect asked 10.96.0.10:53, changed {facts['changed']}" in shown


def test_copies_are_marked() -> None:
    assert "NO_SOCKET in __udp4_lib_rcv  (copy)" in written(samples.no_socket())[1]


def test_a_packet_without_ports_or_hops() -> None:
    assert written(samples.ping()) == [
        "14:03:22.118  ICMP 10.0.0.1 -> 10.0.0.2  84 B  node lo",
        "          =>  delivered to node's kernel",
        "",
    ]


def test_both_ends_rewritten() -> None:
    nat = Nat("rewritten", Endpoints("1.1.1.1", 0, "2.2.2.2", 0), Endpoints("3.3.3.3", 0, "4.4.4.4", 0))
    packet = samples.with_hops(samples.ping(), samples.hop(0, "nat", nat=nat))
    assert written(packet)[1].endswith("rewritten    from 1.1.1.1 -> 3.3.3.3, to 2.2.2.2 -> 4.4.4.4")


def later(packet: Packet, ms: int, **changes: Any) -> Packet:
    """The same packet, `ms` milliseconds later."""
    hops = tuple(replace(hop, time=hop.time + ms * 1_000_007) for hop in packet.hops)
    return replace(packet, **{"time": packet.time + ms * 1_000_000, "hops": hops, **changes})


def in_turn(*packets: Packet, verbose: bool = False) -> list[list[str]]:
    """The lines that one output writes for each packet."""
    out, blocks = io.StringIO(), []
    text = TextOutput(out, io.StringIO(), verbose)
    for packet in packets:
        began = len(out.getvalue())
        text.packet(packet)
        blocks.append(out.getvalue()[began:].splitlines())
    return blocks


SAME = "  same way as at 14:03:22.118"


def test_a_printed_path_is_not_printed_again() -> None:
    first = samples.node_port_reply()
    # Flags, length, sequence number and the times of the hops differ.
    second = later(first, 40, tcp_flags="ACK", length=52, seq=78, number=7, identity=99 << 8)
    printed, again, third = in_turn(first, second, later(first, 1_000))
    assert len(printed) == 6 and not any("same way" in line for line in printed)
    assert again == [
        "14:03:22.158  TCP 10.244.0.11:8080 -> 10.244.0.1:23711  ACK  52 B  pod http-proxy eth0  ESTABLISHED reply",
        "          =>  forwarded to eth0 in node" + SAME,
        "",
    ]
    assert third[1:] == again[1:], "the time of the packet that shows the path"


def different_paths() -> Iterator[Packet]:
    """Packets a little later than node_port_reply's, each with one difference."""
    first = samples.node_port_reply()
    assert first.flow
    hops, rewrite = first.hops, first.hops[1]
    assert isinstance(rewrite, NatHop)
    unchanged = replace(rewrite, nat=replace(rewrite.nat, after=rewrite.nat.before))
    yield later(first, 1, flow=replace(first.flow, orig=Endpoints("192.168.56.1", 40813, "192.168.56.10", 30285)))
    yield later(first, 2, flow=replace(first.flow, is_reply=False))
    yield later(first, 3, verdict="forwarded to eth1 in node")
    yield later(first, 4, hops=[hops[0], unchanged, *hops[2:]])
    yield later(first, 5, hops=[hops[0], *hops[2:]])
    yield later(first, 6, hops=[hops[0], replace(hops[1], netns=Netns("pod other")), *hops[2:]])
    yield later(first, 7, hops=[*hops, samples.hop(70, "socket", socket=Socket(1, "ESTABLISHED", 7, "a"))])
    yield later(first, 8, hops=[*hops, samples.hop(70, "socket", socket=Socket(1, "ESTABLISHED", 8, "b"))])
    yield later(first, 9, flow=None)
    yield later(first, 10, complete=False)
    yield later(first, 11, protocol="UDP", tcp_flags="")
    yield later(first, 12, flow=replace(first.flow, zone=7))


def test_another_path_is_printed() -> None:
    first, others = samples.node_port_reply(), list(different_paths())
    for other, block in zip(others, in_turn(first, *others)[1:], strict=True):
        assert block == written(other)
        assert len(block) >= 5


@pytest.mark.parametrize("packet", [samples.node_port(), samples.rejected(), samples.full_queue(), samples.no_socket()])
def test_failures_and_decisions_of_listeners_are_always_printed(packet: Packet) -> None:
    packet = replace(packet, flow=samples.STATUS, complete=True)
    again = later(packet, 5)
    assert in_turn(packet, again)[1] == written(again)


def test_verbose_prints_every_path() -> None:
    first = samples.node_port_reply()
    again = later(first, 5)
    assert in_turn(first, again, verbose=True)[1] == written(again, verbose=True)


def test_hops_that_decide_nothing_make_no_other_path() -> None:
    first = samples.node_port_reply()
    again = later(first, 5, hops=(samples.hop(0, "table", "OUTPUT", table="nat", verdict="ACCEPT"), *first.hops))
    assert in_turn(first, again)[1][1].endswith(SAME)


def test_the_longest_unused_paths_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.render.text.KEPT_PATHS", 2)
    one, two, three = samples.node_port_reply(), *list(different_paths())[:2]
    blocks = in_turn(one, two, later(one, 20), three, later(one, 30), later(two, 40))
    assert [any("same way" in line for line in block) for block in blocks] == [False, False, True, False, True, False]


def test_names_cannot_control_the_terminal() -> None:
    hop = samples.hop(0, "socket", socket=Socket(1, "LISTEN", 7, "a\x1b[2Jb\n"))
    packet = replace(samples.node_port(), hops=(hop,), verdict="delivered to pid 7 a\x1b[2Jb\n")
    lines = written(packet)
    assert lines[1].endswith("LISTEN, a\\x1b[2Jb\\n (pid 7)")
    assert lines[2].endswith("delivered to pid 7 a\\x1b[2Jb\\n")


@pytest.mark.parametrize(
    ("packet", "code"),
    [(samples.node_port(), "32"), (samples.rejected(), "1;31"), (replace(samples.ping(), outcome=Outcome.UNKNOWN), "33")],
)
def test_the_verdict_has_the_colour_of_its_outcome(packet: Packet, code: str) -> None:
    out = Terminal()
    written(packet, out=out)
    assert re.search(rf"=>  \x1b\[{code}m", out.getvalue())


def test_colour_is_only_used_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not CODE.search("\n".join(written(samples.rejected())))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert CODE.search("\n".join(written(samples.rejected())))
    monkeypatch.setenv("NO_COLOR", "1")
    left = {code for line in written(samples.rejected(), out=Terminal()) for code in CODE.findall(line)}
    assert left <= {"\x1b[0m", "\x1b[1m", "\x1b[2m"}  # bold and dim are no colours


@pytest.mark.parametrize("columns", [70, 80, 132])
def test_lines_fit_the_terminal_and_no_address_is_broken(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for packet in samples.every():
        out = Terminal()
        written(packet, verbose=True, out=out)
        folded = CODE.sub("", out.getvalue())
        assert max(map(len, folded.splitlines())) <= columns
        assert folded.split() == " ".join(written(packet, verbose=True)).split()


def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, written(samples.node_port()))) > 80


def test_loss_and_summary() -> None:
    out, err = io.StringIO(), io.StringIO()
    text = TextOutput(out, err)
    text.begin([CheckResult("kernel", "ok", "x"), CheckResult("IPVS", "degraded", "3 virtual servers")], "--port 1", "6.1.0")
    text.lost(SimpleNamespace(probe="hook", cpu=1, count=12, why="the ring buffer was full"))
    text.lost(SimpleNamespace(probe="table4", cpu=-1, count=1, why="its return was missed"))
    text.lost(SimpleNamespace(probe="packet", cpu=0, count=7, why="the ring buffer was nearly full"))
    text.summary(RunSummary(3, 1, 42, 20, {"delivered": 2, "dropped": 1}, 12.34))
    text.note("bye")
    assert out.getvalue().splitlines() == [
        "lost: 12 events of hook on CPU 1: the ring buffer was full",
        "",
        "lost: 1 event of table4: its return was missed",
        "",
        "lost: 7 packets on CPU 0: the ring buffer was nearly full",
        "",
        "3 packets in 12.3 s",
        "  2 delivered, 1 dropped, 1 incomplete",
        "  42 events, 20 lost (12 of hook, 7 whole packets, 1 of table4)",
    ]
    text.summary(RunSummary(3, events=42, unexplained=8123))
    assert out.getvalue().endswith("\n  the run ended before it could explain 8123 more packets\n")
    text.summary(RunSummary(3, events=42, unaddressed=1))
    assert out.getvalue().endswith("\n  1 packet not shown: no event with the addresses was received\n")
    text.summary(RunSummary(4, outcomes={"forwarded": 4}, events=42, joined=2))
    assert "\n  4 forwarded\n  2 packets passed several nodes, each of which counts it\n" in out.getvalue()
    text.summary(RunSummary(3, events=42, drops_without_finding=2))
    assert "\n  2 dropped packets without a finding: each one's own line has the reason\n" in out.getvalue()
    notes = err.getvalue().splitlines()
    assert "on Linux 6.1.0, tracing --port 1." in notes[0]
    assert notes[1:] == ["! IPVS: 3 virtual servers", "bye"]


def test_doctor_has_a_mark_for_each_state_and_names_fatal_results() -> None:
    out = io.StringIO()
    facts = [
        CheckResult("kernel", "ok", "6.1"),
        CheckResult("fentry", "degraded", "none"),
        CheckResult("bcc", "missing", "gone", 5),
    ]
    TextOutput(out, io.StringIO(), verbose=True).doctor(facts, 5)
    assert out.getvalue().splitlines() == [
        "+ kernel  6.1",
        "! fentry  none",
        "x bcc     gone",
        "Tracing cannot work here: bcc (exit status 5).",
    ]


def test_a_broken_pipe_reaches_the_caller() -> None:
    with pytest.raises(BrokenPipeError):
        TextOutput(Closed(), io.StringIO()).packet(samples.ping())


def test_a_full_disk_reaches_the_caller() -> None:
    with pytest.raises(OSError, match="No space left"), open("/dev/full", "w") as out:
        TextOutput(out, io.StringIO()).packet(samples.ping())


def test_a_note_without_room_is_written_later(tmp_path: Path) -> None:
    class Disk(io.FileIO):
        full = True

        def write(self, data: Any) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    disk = Disk(tmp_path / "err", "w")
    text = TextOutput(io.StringIO(), io.TextIOWrapper(io.BufferedWriter(disk)))
    text.note("one")
    disk.full = False
    text.note("two")
    assert (tmp_path / "err").read_text() == "one\ntwo\n"
