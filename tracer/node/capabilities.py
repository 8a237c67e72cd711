# SPDX-License-Identifier: Apache-2.0
"""Capabilities of this process: checks that it may trace, and drops those that a run does not need.

Every run needs CAP_SYS_ADMIN. CAP_BPF and CAP_PERFMON, which it includes, are not enough: the kernel gives the BTF of modules
(iptables, nftables, NAT) to CAP_SYS_ADMIN alone (bpf_btf_get_next_id), and also perf events, which kprobes are made of, if
kernel.perf_event_paranoid is 3 as on Debian; bcc aborts if they are refused. CAP_SYS_ADMIN is also needed to enter network
namespaces and read their rules.

BITS has all capabilities of a run, LOSES what a run lacks without them; `tests/kernel/all_rights.py` tests it. All others are
dropped at the start, and those for attaching only when the probes are attached. The command after `--` gets root's rights
again: dropping protects against our own errors. The tools that print rules get `restrict`ed rights (tracer/node/tools.py).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tracer.errors import NoProbe, NotRoot

BITS = {
    "CAP_DAC_OVERRIDE": 1,  # to write a capture anywhere, as root can
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_KILL": 5,  # to end the command after `--` under any user
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,  # before 5.11 the probes' maps count as locked memory
    "CAP_SYSLOG": 34,
}
"""Capabilities that a run may need, with their numbers in linux/capability.h."""
NEEDED = "CAP_SYS_ADMIN"
AFTERWARDS = tuple(name for name in BITS if name != "CAP_SYS_RESOURCE")
"""Capabilities that a run still needs after the probes are attached."""

LOSES = {
    "CAP_NET_ADMIN": "no rules, neither of iptables nor of nftables",
    "CAP_NET_RAW": "no rules of legacy iptables, which are read through a raw socket",
    "CAP_SYS_PTRACE": "no processes",
    "CAP_DAC_READ_SEARCH": "no processes of other users",
    "CAP_SYSLOG": "no functions that dropped packets",
}
"""What a run does not show without a capability. (CAP_DAC_OVERRIDE includes CAP_DAC_READ_SEARCH.)"""

LOCKDOWN = Path("/sys/kernel/security/lockdown")

_VERSION_3 = 0x20080522
_NO_NEW_PRIVS = 38


def held(status: str | None = None) -> int:
    """The effective capabilities, as a mask. status: the text of /proc/self/status."""
    lines = (Path("/proc/thread-self/status").read_text() if status is None else status).splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def mask(names: tuple[str, ...]) -> int:
    return sum(1 << BITS[name] for name in names)


def lost(mine: int) -> str:
    """What a run with these capabilities (a mask) does not show, as a clause; "" = it shows everything."""
    mine |= mask(("CAP_DAC_READ_SEARCH",)) if mine & mask(("CAP_DAC_OVERRIDE",)) else 0
    lacks = [name for name in LOSES if not mine & mask((name,))]
    return "; ".join(f"without {name} {LOSES[name]}" for name in lacks)


def require_root() -> None:
    """Raises NotRoot if this process does not belong to root."""
    if os.geteuid() != 0:
        raise NotRoot("Tracing needs root: run it with sudo.")


def lockdown_mode(text: str) -> str:
    """The lockdown mode in force. text: content of LOCKDOWN, "none [integrity] confidentiality"; "" = no lockdown."""
    return text.partition("[")[2].partition("]")[0] or "none"


def _require_unlocked() -> None:
    try:
        mode = lockdown_mode(LOCKDOWN.read_text())
    except OSError:  # no lockdown, or no securityfs here: then the kernel refuses later
        return
    if mode == "confidentiality":
        raise NoProbe(f"This kernel is locked down ({mode}): it forbids probes, so nothing can be traced.")


def require_tracing() -> None:
    """Checks that this process may load tracing programs.

    Raises:
        NotRoot: It lacks the rights.
        NoProbe: The kernel is locked down.
    """
    require_root()
    _require_unlocked()
    if not held() & mask((NEEDED,)):
        raise NotRoot(f"Tracing needs {NEEDED}, which this process does not have: run the container privileged.")


def give_up(but: tuple[str, ...] = AFTERWARDS) -> None:
    """Drops all capabilities but these, in this thread and the threads that it starts."""
    keep(held() & mask(but))


def restrict(names: tuple[str, ...]) -> None:
    """Limits this thread, and programs that it starts, to these capabilities for ever; programs of root regain no rights.

    With no_new_privs a program that root starts has no more rights than its parent (cap_bprm_creds_from_file in the kernel's
    security/commoncap.c). The bounding set would have the same effect, but its change needs CAP_SETPCAP, which is dropped.

    Raises:
        OSError: prctl failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    keep(held() & mask(names))


def keep(these: int) -> None:
    """Drops all capabilities but these (a mask), in this thread and the threads that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    low, high = these & 0xFFFFFFFF, these >> 32
    libc.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0))
