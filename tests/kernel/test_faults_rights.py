# SPDX-License-Identifier: Apache-2.0
"""Fewer rights or kernel features: one sentence for each at the start, and the rest works. docs/faults.md describes each."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from scenes import rules, traffic
from scenes.topology import CLIENT4
from tests.kernel import tracers
from tests.kernel.tracers import Tracer, with_capabilities, without_events, without_symbols
from tests.kernel.untouched import settled, state
from tracer.node import capabilities

pytestmark = pytest.mark.thorough

LOCKED = "none integrity [confidentiality]"
LOCKDOWN = (
    "unshare -m sh -c 'mount -t tmpfs none /sys/kernel/security && "
    f'echo "{LOCKED}" >/sys/kernel/security/lockdown && exec "$@"\' sh'
)
"""Makes the kernel look locked down. (A real one stays locked: tests/kernel/all_rights.py tries it.)"""
PATIENCE = 60.0
PORTS, DATAGRAMS = (9753, 9754), 20
DROPPED = f"""*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A OUTPUT -p udp -m udp --dport {PORTS[0]} -j DROP
-A OUTPUT -p udp -m udp --dport {PORTS[1]} -j DROP
COMMIT
"""
CONTAINED = (
    "unshare -m sh -c 'umount -l /sys && mount -t sysfs -o ro none /sys && mount --bind /tmp /tmp && mount -o remount,bind,ro /"
    ' && ! touch /var/x 2>/dev/null && exec "$@"\' sh'
)
"""/sys as a container sees it, and a read-only root except for /tmp."""


@pytest.mark.parametrize(
    ("before", "status", "message"),
    [
        (with_capabilities("CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"), 3, "Tracing needs CAP_SYS_ADMIN, which this process"),
        (LOCKDOWN, 6, "This kernel is locked down (confidentiality)"),
        ("unshare -m sh -c 'mount -t tmpfs none /sys/kernel/btf && exec \"$@\"' sh", 4, "This kernel gives no BTF"),
    ],
    ids=["no CAP_SYS_ADMIN", "lockdown", "no BTF"],
)
def test_a_failed_start_states_its_reason(node: None, tmp_path: Path, before: str, status: int, message: str) -> None:
    tracer = Tracer(tmp_path, "a", before)
    assert not tracer.started()
    assert (tracer.end(), tracer.process.returncode) == ([], status)
    assert message in tracer.messages() and len(tracer.messages().strip().splitlines()) == 1, tracer.messages()


def test_a_required_kernel_function_is_missing(node: None, tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, "a", without_symbols(tmp_path, "nf_hook_slow"))
    assert not tracer.started() and tracer.process.returncode == 6
    assert "the kernel has no function nf_hook_slow" in tracer.messages() and "Traceback" not in tracer.messages()


def test_the_least_rights_and_fewer_symbols(node: None, tmp_path: Path) -> None:
    """Both at once: neither disturbs the other. The first one sees files as an unprivileged container does."""
    before = state()
    least = Tracer(tmp_path, "least", f"{CONTAINED} {with_capabilities(capabilities.NEEDED, *capabilities.LOSES)}")
    fewer = Tracer(tmp_path, "fewer", without_symbols(tmp_path, "nf_nat_manip_pkt", "tcp_conn_request"))
    assert least.started() and fewer.started(), least.messages() + fewer.messages()
    assert traffic.http_get().outcome == "answered"
    end = time.monotonic() + PATIENCE
    while len(tracers.packets(least.lines())) < 8 and time.monotonic() < end:  # packets wait until the rules are read
        time.sleep(0.3)
    lines = {tracer.name: tracer.end() for tracer in (least, fewer)}
    whole, part = (tracers.packets(lines[name]) for name in ("least", "fewer"))
    assert len(whole) >= 8 and all(p["complete"] for p in whole)
    assert [h["nat"]["kind"] for h in whole[0]["hops"] if "nat" in h] == ["DNAT", "MASQUERADE"]
    assert tracers.reported(lines["least"])["rules of iptables"] and tracers.reported(lines["least"])["processes"]
    missing = {f["subject"]: f["text"] for f in tracers.facts(lines["fewer"]) if f["state"] == "missing"}
    assert "nf_nat has no function nf_nat_manip_pkt" in missing["probe nat"] and "tcp_conn_request" in missing["probe syn"]
    assert len(part) >= 8 and not any("handshake" in h for h in part[0]["hops"])
    assert least.process.returncode == fewer.process.returncode == 0
    assert "Traceback" not in least.messages() + fewer.messages() and "kprobe_events" not in least.messages()
    assert settled(before) == before


def test_packets_with_the_address_of_one_with_an_unseen_end(node: None, tmp_path: Path) -> None:
    """No event shows that a packet was dropped; the next ones have its address. Each has its own headers and rules."""
    tracer = Tracer(tmp_path, "a", without_events(tmp_path, "drop"), PORTS)
    rules.restore_text(DROPPED, 4, "legacy", flush=False)
    try:
        assert tracer.started(), tracer.messages()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for number in range(DATAGRAMS * len(PORTS)):
                with suppress(PermissionError):
                    sock.sendto(b"%08d" % number, (CLIENT4, PORTS[number % len(PORTS)]))
        time.sleep(2.0)
        found = [packet for packet in tracers.packets(tracer.end()) if packet.get("dport") in PORTS]
    finally:
        rules.flush()
        rules.restore("http-proxy", "http-proxy-v6")
    assert not any("drop" in packet for packet in found)
    assert [packet["dport"] for packet in found] == [PORTS[n % len(PORTS)] for n in range(DATAGRAMS * len(PORTS))]
    for packet in found:
        (table,) = [hop for hop in packet["hops"] if hop["what"] == "table"]
        assert (table["table"], table["rule"]["number"]) == ("raw", 1 + PORTS.index(packet["dport"])), table
