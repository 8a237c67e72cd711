# SPDX-License-Identifier: Apache-2.0
"""Everything of a node that must be the same, byte for byte and with its counters, before, during and after a run.

Only an idle node can be compared like this: no packet passes it. quiet() waits for that.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from scenes.netns import RUN_DIR, entered

State = dict[str, str]

PROBES = ("kprobes", "ftrace", "BPF programs", "BPF maps", "BPF links", "BTF", "module users", "static key", "next inode",
          "processes", "namespaces that processes are in")  # fmt: skip
"""What a run has more while it lasts. On Linux 7.2 lsns lists the namespace of the trace switch (tracer/rules/nftables/
trace_key.py), to which only a descriptor of the tracer leads; on older kernels it does not."""

QUIET_SECONDS, PATIENCE = 2.0, 180.0
SETTLE_SECONDS = 30.0
VOLATILE = re.compile(
    r"^(fs\.(dentry-state|inode-nr|inode-state|file-nr|aio-nr)|kernel\.(random\..*|ns_last_pid|pty\.nr|tainted)"
    r"|net\.netfilter\.nf_conntrack_(expect_)?count) = .*\n",
    re.M,
)
"""sysctls that move on a node that nobody touches: figures of the moment, not settings."""
FILES = ("/tmp", "/run", "/var/tmp", "/dev/shm", "/etc", "/root", "/home", "/sys/fs/bpf", "/sys/kernel/tracing/instances")
LAB = "/run/lab"
"""Where the machine that this runs in keeps its own files."""
NETS = (
    "dev",
    "snmp",
    "snmp6",
    "netstat",
    "stat/nf_conntrack",
    "route",
    "ipv6_route",
    "if_inet6",
    "ip_tables_names",
    "ip6_tables_names",
)
RULES = {
    "iptables-legacy": ("iptables-legacy-save", "-c", "-M", "/bin/true"),
    "ip6tables-legacy": ("ip6tables-legacy-save", "-c", "-M", "/bin/true"),
    "nft": ("nft", "-a", "list", "ruleset"),
    "iptables-nft": ("iptables-nft-save", "-c"),
    "ip6tables-nft": ("ip6tables-nft-save", "-c"),
    "conntrack": ("conntrack", "-L", "-o", "extended"),
    "conntrack of IPv6": ("conntrack", "-L", "-f", "ipv6", "-o", "extended"),
    "links": ("ip", "-o", "link"),
    "addresses": ("ip", "-o", "addr"),
    "rules of routing": ("ip", "rule"),
}
"""What the node's own namespace is asked, with all counters."""
_REMAINING = re.compile(r"(^\S+ +\d+ \S+ +\d+) \d+ ", re.M)
"""The seconds that a connection still has in conntrack's table."""
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_NEXT_ID = {"BPF programs": 11, "BPF maps": 12, "BTF": 23, "BPF links": 31}
"""Commands of bpf(2): the next number of a kind."""
_ADDRESSES: dict[str, int] = {}
"""Of static keys, by name: finding one takes seconds in an emulator."""
_libc = ctypes.CDLL(None, use_errno=True)


def state(rules: bool = True) -> State:
    """The node as it is now. rules: its rules, too, and what else takes a process to be asked for."""
    found = {"modules": "", **_modules()}  # before anything is run that may load one
    found |= {name: _ids(command) for name, command in _NEXT_ID.items()}
    found |= {
        "kprobes": _read("/sys/kernel/tracing/kprobe_events") + _read("/sys/kernel/debug/kprobes/list"),
        "uprobes": _read("/sys/kernel/tracing/uprobe_events"),
        "ftrace": _read("/sys/kernel/tracing/enabled_functions"),
        "tracer": _read("/sys/kernel/tracing/current_tracer") + _read("/sys/kernel/tracing/set_event"),
        "static key": _static_key("nft_trace_enabled"),
        "files": "\n".join(_files()),
        "mounts": re.sub(r" /run/netns/\S+", " ", _read("/proc/self/mounts")),
        "processes": "\n".join(_processes()),
        "sysctls": _sysctls("-a", "--pattern", "^(?!net)"),
        "namespaces": "\n".join(sorted(path.name for path in RUN_DIR.iterdir())) if RUN_DIR.is_dir() else "",
    }
    for name in (None, *found["namespaces"].split()):
        with entered(name):
            space = _namespace() | (_asked(RULES) if rules and not name else {})
            found |= {f"{name or 'node'}: {what}": text for what, text in space.items()}
    if rules:
        found["next inode"] = _run("unshare", "-n", "readlink", "/proc/self/ns/net")
        found["namespaces that processes are in"] = _run("sh", "-c", "lsns -t net -n -o NS,PATH | sort")
    return found


def _namespace() -> State:
    """What is asked of each namespace."""
    return {name: _read(f"/proc/thread-self/net/{name}") for name in NETS} | {"sysctls": _sysctls("-a", "--pattern", "^net")}


def _asked(commands: Mapping[str, tuple[str, ...]]) -> State:
    found = {}
    for what, command in commands.items():
        lines = _run(*command).splitlines(keepends=True)
        found[what] = _REMAINING.sub(r"\1 ", "".join(line for line in lines if not line.startswith("#")))
    return found


def quiet() -> State:
    """The state, once it is the same twice in a row and no connection is in TIME_WAIT, whose end is counted (TcpExt: TW): then
    nothing happens on the node. AssertionError when it never is so."""
    before, until = state(), time.monotonic() + PATIENCE
    while True:
        time.sleep(QUIET_SECONDS)
        waiting, now = _in_time_wait(), state()  # in this order: one that ends in between is in the state
        if now == before and not waiting:
            return now
        why = f"{waiting} connections in TIME_WAIT\n{differences(before, now)}"
        assert time.monotonic() < until, f"the node is not idle: {why}"
        before = now


def _in_time_wait() -> int:
    """Connections of all namespaces that have ended and wait."""
    waiting = 0
    for name in (None, *(sorted(path.name for path in RUN_DIR.iterdir()) if RUN_DIR.is_dir() else ())):
        with entered(name):
            waiting += sum(int(number) for number in re.findall(r" tw (\d+)", _read("/proc/thread-self/net/sockstat")))
    return waiting


def settled(before: State, but: tuple[str, ...] = ()) -> State:
    """The state now; a moment is allowed for what the kernel frees by itself after a process has ended, and for a tool that the
    tracer runs just then. but: what may differ."""
    until = time.monotonic() + SETTLE_SECONDS
    while differences(before, now := state(), but) and time.monotonic() < until:
        time.sleep(0.5)
    return now


def differences(before: Mapping[str, str], now: Mapping[str, str], but: tuple[str, ...] = ()) -> str:
    """What is not the same, a line each: "- " was there, "+ " is there now. but: what may differ."""
    out = []
    for what in sorted({*before, *now}.difference(but)):
        old, new = before.get(what, "").splitlines(), now.get(what, "").splitlines()
        gone, come = set(old) - set(new), set(new) - set(old)
        out += [f"{what}: - {line}" for line in old if line in gone] + [f"{what}: + {line}" for line in new if line in come]
        if old != new and not gone and not come:
            out.append(f"{what}: other order or count")
    return "\n".join(out)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as e:
        return f"{e.strerror}\n"


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as e:
        return f"{command[0]}: {e.strerror}\n"
    return done.stdout + (f"status {done.returncode}: {done.stderr}" if done.returncode else "")


def _modules() -> State:
    """Names; and, apart, their users: a probe in a module holds it."""
    lines = sorted(line.split() for line in _read("/proc/modules").splitlines())
    return {"modules": "\n".join(line[0] for line in lines), "module users": "\n".join(" ".join(line[:4]) for line in lines)}


def _ids(command: int) -> str:
    """The numbers of all BPF objects of a kind."""
    found, attr = [], (ctypes.c_uint32 * 32)()
    number = _SYS_BPF[os.uname().machine]
    while _libc.syscall(number, command, ctypes.byref(attr), 12) == 0:
        found.append(str(attr[1]))
        attr[0] = attr[1]
    return "\n".join(found)


def _static_key(name: str) -> str:
    """Whether code behind a static key is switched on: the count in the key itself, by way of /proc/kcore."""
    if name not in _ADDRESSES:
        found = re.search(rf"^(\w+) \w {name}\b", _read("/proc/kallsyms"), re.M)
        if not found:
            return "no such key"
        _ADDRESSES[name] = int(found[1], 16)
    address = _ADDRESSES[name]
    with open("/proc/kcore", "rb") as core:
        head = core.read(64)
        offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        core.seek(offset)
        for raw in (core.read(size) for _ in range(count)):
            kind, _, at, start, _, length = struct.unpack_from("<IIQQQQ", raw)
            if kind == 1 and start <= address < start + length:
                core.seek(at + address - start)
                return f"{name} {struct.unpack('<i', core.read(4))[0]}"
    return "not in /proc/kcore"


def _files() -> Iterator[str]:
    """Each file of FILES with its size, and when it was changed."""
    for top in FILES:
        for directory, directories, files in os.walk(top):
            directories[:] = sorted(name for name in directories if f"{directory}/{name}" != LAB)
            for name in sorted((*directories, *files)):
                path = Path(directory, name)
                with suppress(OSError):
                    about = path.lstat()
                    yield f"{path} {about.st_mode:o} {about.st_size} {about.st_mtime_ns}"


def _processes() -> Iterator[str]:
    """Programs that run, but for those of the kernel's own and the one that asks."""
    own = {os.getpid(), os.getppid()}
    for pid in sorted((int(p) for p in os.listdir("/proc") if p.isdigit()), key=int):
        with suppress(OSError):
            if pid not in own and os.readlink(f"/proc/{pid}/exe"):
                yield f"{pid} {_read(f'/proc/{pid}/comm').strip()}"


def _sysctls(*names: str) -> str:
    return VOLATILE.sub("", _run("sysctl", "-e", *names))


if __name__ == "__main__":
    began, before = time.monotonic(), state()
    print(*(f"{what}: {len(text)}" for what, text in before.items()), sep="\n")
    print(differences(before, state()), f"{time.monotonic() - began:.1f} s")
