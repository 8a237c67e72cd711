# SPDX-License-Identifier: Apache-2.0
"""What this process may do: enough to trace, or one sentence why not; and no more than it needs.

CAP_SYS_ADMIN is what no run can do without. CAP_BPF and CAP_PERFMON, which it has in it, are not enough: the BTF of modules,
where iptables, nftables and NAT live, is given to CAP_SYS_ADMIN alone (bpf_btf_get_next_id), and so are perf events, of which
kprobes are made, where kernel.perf_event_paranoid is 3 as on Debian; bcc aborts when they are refused. It also enters network
namespaces to read their rules.

What else a run needs, and loses without, is in BITS and LOSES; `tests/kernel/all_rights.py` tries it. All else is given up
before anything is started, and what only attaching needs when the probes are on. The command after `--` has root's rights
again: this is about mistakes of our own. The tools that print rules have `restrict`ed ones (tracer/node/tools.py).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tracer.errors import NoProbe, NotRoot

BITS = {
    "CAP_DAC_OVERRIDE": 1,  # to write a capture anywhere, as root can
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_KILL": 5,  # to end the command after `--`, whoever it has become
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,  # before 5.11 the probes' maps count as locked memory
    "CAP_SYSLOG": 34,
}
"""What a run may need. Their numbers in linux/capability.h."""
NEEDED = "CAP_SYS_ADMIN"
AFTERWARDS = tuple(name for name in BITS if name != "CAP_SYS_RESOURCE")
"""Those that it goes on needing when the probes are on."""

LOSES = {
    "CAP_NET_ADMIN": "no rules, neither of iptables nor of nftables",
    "CAP_NET_RAW": "no rules of legacy iptables, which are asked for through a raw socket",
    "CAP_SYS_PTRACE": "no processes",
    "CAP_DAC_READ_SEARCH": "no processes of other users",
    "CAP_SYSLOG": "no functions that dropped",
}
"""What is not told without one of them. (CAP_DAC_OVERRIDE stands for CAP_DAC_READ_SEARCH, too.)"""

LOCKDOWN = Path("/sys/kernel/security/lockdown")

_VERSION_3 = 0x20080522
_NO_NEW_PRIVS = 38


def held(status: str | None = None) -> int:
    """The capabilities in force, as a mask. status: the text of /proc/self/status."""
    lines = (Path("/proc/thread-self/status").read_text() if status is None else status).splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def mask(names: tuple[str, ...]) -> int:
    return sum(1 << BITS[name] for name in names)


def lost(mine: int) -> str:
    """What a run with these capabilities (a mask) does not tell, as a clause; "" when it tells everything."""
    mine |= mask(("CAP_DAC_READ_SEARCH",)) if mine & mask(("CAP_DAC_OVERRIDE",)) else 0
    lacks = [name for name in LOSES if not mine & mask((name,))]
    return "; ".join(f"without {name} {LOSES[name]}" for name in lacks)


def require_root() -> None:
    """Raises NotRoot for anybody else."""
    if os.geteuid() != 0:
        raise NotRoot("Tracing needs root: run it with sudo.")


def lockdown_mode(text: str) -> str:
    """The mode that is in force. text: of LOCKDOWN, "none [integrity] confidentiality"; "" where there is none."""
    return text.partition("[")[2].partition("]")[0] or "none"


def _require_unlocked() -> None:
    try:
        mode = lockdown_mode(LOCKDOWN.read_text())
    except OSError:  # no lockdown, or no securityfs here: then the kernel's refusal says it
        return
    if mode == "confidentiality":
        raise NoProbe(f"This kernel is locked down ({mode}): it forbids probes, so nothing can be traced.")


def require_tracing() -> None:
    """Raises NotRoot unless this process may load tracing programs, NoProbe where nobody may."""
    require_root()
    _require_unlocked()
    if not held() & mask((NEEDED,)):
        raise NotRoot(f"Tracing needs {NEEDED}, which this root lacks: run the container privileged.")


def give_up(but: tuple[str, ...] = AFTERWARDS) -> None:
    """Keeps no more than these, in this thread and those that it starts."""
    keep(held() & mask(but))


def restrict(names: tuple[str, ...]) -> None:
    """Leaves this thread, and programs that it starts, no more than these for ever: root's programs get no rights back.

    With no_new_privs a program that root starts keeps to the rights of who starts it (cap_bprm_creds_from_file in the kernel's
    security/commoncap.c). The bounding set could do the same, but to change it takes CAP_SETPCAP, which is given up.
    Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    keep(held() & mask(names))


def keep(these: int) -> None:
    """Gives up all capabilities but these (a mask), in this thread and those that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    low, high = these & 0xFFFFFFFF, these >> 32
    libc.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0))
