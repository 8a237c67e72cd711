# SPDX-License-Identifier: Apache-2.0
"""The state of a node that must be the same, byte for byte and with its counters, before, during and after a run.

Only an idle node, which no packet passes, can be compared like this. quiet() waits until the node is idle.
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
"""Parts of the state that change while a run lasts. On Linux 7.2 lsns lists the namespace of the trace switch
(tracer/rules/nftables/trace_key.py), to which only a descriptor of the tracer leads; on older kernels it does not."""

QUIET_SECONDS, PATIENCE = 2.0, 180.0
QUIET_READINGS = 3
"""Twice is too few on a slow machine: the kernel frees deleted namespaces later, all at once."""
SETTLE_SECONDS = 30.0
VOLATILE = re.compile(
    r"^(fs\.(dentry-state|inode-nr|inode-state|file-nr|aio-nr)|kernel\.(random\..*|ns_last_pid|pty\.nr|tainted)"
    r"|net\.netfilter\.nf_conntrack_(expect_)?count) = .*\n",
    re.M,
)
"""sysctls that change on an idle node: current figures, not settings."""
FILES = ("/tmp", "/run", "/var/tmp", "/dev/shm", "/etc", "/root", "/home", "/sys/fs/bpf", "/sys/kernel/tracing/instances")
MARKER = "idle-marker"
"""Name of a device of a namespace that ends."""
LAB = "/run/lab"
"""Directory of the virtual machine's own files."""
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
"""Commands that print the rules and tables of the node's own namespace, with all counters."""
_TRAMPOLINE = re.compile(r"direct-->\S+")
"""Address of a trampoline. It is built anew, at any free place, when another tracer attaches to its function or leaves it."""
_REMAINING = re.compile(r"(^\S+ +\d+ \S+ +\d+) \d+ ", re.M)
"""The remaining seconds of a connection in conntrack's table."""
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_NEXT_ID = {"BPF programs": 11, "BPF maps": 12, "BTF": 23, "BPF links": 31}
"""Commands of bpf(2) that return the next id of a kind."""
_ADDRESSES: dict[str, int] = {}
"""Addresses of static keys, by name: finding one takes seconds in an emulator."""
_libc = ctypes.CDLL(None, use_errno=True)


def state(rules: bool = True) -> State:
    """The node's state now. rules: with the rules, and all else that needs a process to be read."""
    found = {"modules": "", **_modules()}  # before any command that may load a module
    found |= {name: _ids(command) for name, command in _NEXT_ID.items()}
    found |= {
        "kprobes": _read("/sys/kernel/tracing/kprobe_events") + _read("/sys/kernel/debug/kprobes/list"),
        "uprobes": _read("/sys/kernel/tracing/uprobe_events"),
        "ftrace": _TRAMPOLINE.sub("direct-->", _read("/sys/kernel/tracing/enabled_functions")),
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
            space = _namespace() | (_output(RULES) if rules and not name else {})
            found |= {f"{name or 'node'}: {what}": text for what, text in space.items()}
    if rules:
        found["next inode"] = _run("unshare", "-n", "readlink", "/proc/self/ns/net")
        found["namespaces that processes are in"] = _run("sh", "-c", "lsns -t net -n -o NS,PATH | sort")
    return found


def _namespace() -> State:
    """The state of one namespace that is read without a process."""
    return {name: _read(f"/proc/thread-self/net/{name}") for name in NETS} | {"sysctls": _sysctls("-a", "--pattern", "^net")}


def _output(commands: Mapping[str, tuple[str, ...]]) -> State:
    found = {}
    for what, command in commands.items():
        lines = _run(*command).splitlines(keepends=True)
        found[what] = _REMAINING.sub(r"\1 ", "".join(line for line in lines if not line.startswith("#")))
    return found


def quiet() -> State:
    """The state of the idle node: it was the same QUIET_READINGS times in a row, and no connection is in TIME_WAIT. (The end of
    TIME_WAIT is counted, TcpExt: TW.) Raises AssertionError when the node does not become idle."""
    before, until, equal = state(), time.monotonic() + PATIENCE, 1
    while True:
        time.sleep(QUIET_SECONDS)
        waiting, now = _in_time_wait(), state()  # in this order: if one ends in between, its end is in the state
        equal = equal + 1 if now == before else 1
        if equal >= QUIET_READINGS and not waiting:
            return now
        why = f"{waiting} connections in TIME_WAIT\n{differences(before, now)}"
        assert time.monotonic() < until, f"the node is not idle: {why}"
        before = now


def wait_for_removed_namespaces() -> None:
    """Waits until the kernel has freed every namespace that is unused now, with its inode and its use of modules.

    One kernel thread does that, in batches. A namespace of this function ends, and the other end of its pair of devices
    disappears in the middle of a batch. When that has happened a second time, the batch of the first time is done.
    Raises AssertionError when the kernel does not do it in time.
    """
    for _ in range(2):
        with subprocess.Popen(["unshare", "-n", "sleep", "infinity"]) as process:
            try:
                own, until = os.readlink("/proc/self/ns/net"), time.monotonic() + PATIENCE
                while os.readlink(f"/proc/{process.pid}/ns/net") == own and time.monotonic() < until:
                    time.sleep(0.1)
                peer = ("peer", "name", MARKER, "netns", str(process.pid))
                subprocess.run(["ip", "link", "add", MARKER, "type", "veth", *peer], check=True)
            finally:
                process.kill()
        while Path("/sys/class/net", MARKER).exists():
            assert time.monotonic() < until, "the kernel does not remove a namespace"
            time.sleep(0.1)


def _in_time_wait() -> int:
    """Number of connections in TIME_WAIT, in all namespaces."""
    waiting = 0
    for name in (None, *(sorted(path.name for path in RUN_DIR.iterdir()) if RUN_DIR.is_dir() else ())):
        with entered(name):
            waiting += sum(int(number) for number in re.findall(r" tw (\d+)", _read("/proc/thread-self/net/sockstat")))
    return waiting


def settled(before: State, ignored: tuple[str, ...] = ()) -> State:
    """The state, as soon as it equals `before`, or after SETTLE_SECONDS: the kernel frees some objects after a process has
    ended, and the tracer may just run a tool. ignored: parts that may differ."""
    until = time.monotonic() + SETTLE_SECONDS
    while differences(before, now := state(), ignored) and time.monotonic() < until:
        time.sleep(0.5)
    return now


def differences(before: Mapping[str, str], now: Mapping[str, str], ignored: tuple[str, ...] = ()) -> str:
    """The differences, one line each: "- " was there before, "+ " is there now. ignored: parts that may differ."""
    out = []
    for what in sorted({*before, *now}.difference(ignored)):
        old, new = before.get(what, "").splitlines(), now.get(what, "").splitlines()
        gone, come = set(old) - set(new), set(new) - set(old)
        out += [f"{what}: - {line}" for line in old if line in gone] + [f"{what}: + {line}" for line in new if line in come]
        if old != new and not gone and not come:
            out.append(f"{what}: different order or count")
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
    """The modules' names and, separately, their users: a probe in a module is a user of it."""
    lines = sorted(line.split() for line in _read("/proc/modules").splitlines())
    return {"modules": "\n".join(line[0] for line in lines), "module users": "\n".join(" ".join(line[:4]) for line in lines)}


def _ids(command: int) -> str:
    """The ids of all BPF objects of a kind."""
    found, attr = [], (ctypes.c_uint32 * 32)()
    number = _SYS_BPF[os.uname().machine]
    while _libc.syscall(number, command, ctypes.byref(attr), 12) == 0:
        found.append(str(attr[1]))
        attr[0] = attr[1]
    return "\n".join(found)


def _static_key(name: str) -> str:
    """Whether the code behind a static key is on: the count in the key, read from /proc/kcore."""
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
    """Each file below FILES with its mode, size and time of change."""
    for top in FILES:
        for directory, directories, files in os.walk(top):
            directories[:] = sorted(name for name in directories if f"{directory}/{name}" != LAB)
            for name in sorted((*directories, *files)):
                path = Path(directory, name)
                with suppress(OSError):
                    about = path.lstat()
                    yield f"{path} {about.st_mode:o} {about.st_size} {about.st_mtime_ns}"


def _processes() -> Iterator[str]:
    """Running programs, without kernel threads, this process and its parent."""
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
