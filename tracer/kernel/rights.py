"""What this process may do: enough to trace, or one sentence why not; and no more than it needs once the probes are attached.

CAP_BPF and CAP_PERFMON attach probes (both are in CAP_SYS_ADMIN, and apart from it since 5.8). Of the rest, what a run goes on
needing is kept:

    CAP_SYS_ADMIN         to read the rules of other network namespaces, and to be told of nftables' rules from one of its own
    CAP_NET_ADMIN, CAP_NET_RAW      to read rules; those of legacy iptables are asked for through a raw socket
    CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH     to find the process that has a socket
    CAP_SYSLOG            to name functions of modules that came later
    CAP_BPF               to change the filter, and to ask for losses
    CAP_DAC_OVERRIDE, CAP_KILL      to write a capture anywhere, and to end the command after `--`, as root could

Programs that are run (iptables-save, nft, the command after `--`) have root's rights again: this is about mistakes of our own.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tracer.errors import NoProbe, NotRoot

BITS = {
    "CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2, "CAP_KILL": 5, "CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13,
    "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_SYSLOG": 34, "CAP_PERFMON": 38, "CAP_BPF": 39,
}  # fmt: skip
"""Their numbers in linux/capability.h."""
ATTACHING = ("CAP_BPF", "CAP_PERFMON")
AFTERWARDS = tuple(name for name in BITS if name != "CAP_PERFMON")

LOCKDOWN = Path("/sys/kernel/security/lockdown")

_VERSION_3 = 0x20080522


def held(status: str | None = None) -> int:
    """The capabilities in force, as a mask. status: the text of /proc/self/status."""
    lines = (Path("/proc/thread-self/status").read_text() if status is None else status).splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def mask(names: tuple[str, ...]) -> int:
    return sum(1 << BITS[name] for name in names)


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
    mine = held()
    lacking = [name for name in ATTACHING if not mine & mask((name,))]
    if lacking and not mine & mask(("CAP_SYS_ADMIN",)):
        raise NotRoot(f"Tracing needs {' and '.join(lacking)}, which this root lacks: run the container privileged.")


def give_up() -> None:
    """Keeps what a run needs from now on, in this thread and those that it starts."""
    keep(held() & mask(AFTERWARDS))


def keep(these: int) -> None:
    """Gives up all capabilities but these (a mask), in this thread and those that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    low, high = these & 0xFFFFFFFF, these >> 32
    libc.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0))
