# SPDX-License-Identifier: Apache-2.0
"""The capabilities that tracing needs, and those that a run gives up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tracer.errors import NoProbe, NotRoot
from tracer.node import capabilities

ALL = (1 << 41) - 1


def test_bits_are_those_of_the_kernel_header() -> None:
    header = Path("/usr/include/linux/capability.h")
    if not header.exists():
        pytest.skip("no kernel headers")
    found = dict(re.findall(r"^#define\s+(CAP_\w+)\s+(\d+)$", header.read_text(), re.M))
    assert {name: int(found[name]) for name in capabilities.BITS} == capabilities.BITS


def test_held_capabilities_are_read_from_status() -> None:
    assert capabilities.held("Name:\tx\nCapPrm:\t0000000000000001\nCapEff:\t000001ffffffffff\n") == ALL
    assert capabilities.held("Name:\tx\n") == 0


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (ALL, ""),
        (capabilities.mask(("CAP_SYS_ADMIN",)), ""),
        (1 << 38 | 1 << 39 | capabilities.mask(("CAP_NET_ADMIN",)), "CAP_SYS_ADMIN,"),  # CAP_PERFMON and CAP_BPF
    ],
)
def test_missing_capabilities_are_named(held: int, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(capabilities, "held", lambda: held)
    if not missing:
        capabilities.require_tracing()
        return
    sentence = f"Tracing needs {missing} which this process does not have: run the container privileged."
    with pytest.raises(NotRoot, match=f"^{re.escape(sentence)}$"):
        capabilities.require_tracing()


@pytest.mark.parametrize(
    ("without", "lost"),
    [
        ((), ""), (("CAP_KILL", "CAP_SYS_RESOURCE"), ""), (("CAP_DAC_READ_SEARCH",), ""), (("CAP_DAC_OVERRIDE",), ""),
        (("CAP_DAC_READ_SEARCH", "CAP_DAC_OVERRIDE"), "without CAP_DAC_READ_SEARCH no processes of other users"),
        (("CAP_SYS_PTRACE", "CAP_SYSLOG"), "without CAP_SYS_PTRACE no processes; "
         "without CAP_SYSLOG no functions that dropped packets"),
    ],
)  # fmt: skip
def test_lost_information_is_reported(without: tuple[str, ...], lost: str) -> None:
    assert capabilities.lost(ALL & ~capabilities.mask(without)) == lost


@pytest.mark.parametrize(
    ("text", "is_allowed"), [("[none] integrity confidentiality\n", True), ("none integrity [confidentiality]\n", False)]
)
def test_lockdown_is_reported_before_anything_is_tried(
    text: str, is_allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lockdown").write_text(text)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(capabilities, "held", lambda: ALL)
    monkeypatch.setattr(capabilities, "LOCKDOWN", tmp_path / "lockdown")
    if is_allowed:
        capabilities.require_tracing()
        return
    with pytest.raises(NoProbe, match=r"^This kernel is locked down \(confidentiality\): .* nothing can be traced\.$"):
        capabilities.require_tracing()


def test_another_user_is_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotRoot, match=r"^Tracing needs root: run it with sudo\.$"):
        capabilities.require_tracing()


GIVEN_UP = """
import threading
from tracer.node import capabilities
before = capabilities.held()
capabilities.give_up()
seen = []
thread = threading.Thread(target=lambda: seen.append(capabilities.held()))
thread.start()
thread.join()
import subprocess
child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
print(before, capabilities.held(), seen[0], capabilities.held(child))
"""


def test_the_other_capabilities_are_given_up() -> None:
    """In a separate process: a capability that was given up does not come back. A program that it runs has all of them."""
    ran = subprocess.run([sys.executable, "-c", GIVEN_UP], capture_output=True, text=True, check=True)
    before, after, thread, child = map(int, ran.stdout.split())
    assert after == thread == before & capabilities.mask(capabilities.AFTERWARDS)
    assert child == before
    if before:
        assert after != before


STILL = """
import ctypes, os, socket, subprocess
from tracer.node import capabilities
capabilities.give_up()
own = os.open("/proc/self/ns/net", os.O_RDONLY)
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).close()
os.listdir("/proc/1/fd")
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())
assert libc.setns(own, 0x40000000) == 0, os.strerror(ctypes.get_errno())
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except PermissionError:
    print("kept")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_the_work_of_a_run_is_still_possible() -> None:
    """Rules are read through a raw socket, in other namespaces; a process is found by its descriptors."""
    ran = subprocess.run(["unshare", "-n", sys.executable, "-c", STILL], capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == ("kept\n", 0), ran.stderr
