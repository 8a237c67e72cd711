# SPDX-License-Identifier: Apache-2.0
"""Compiled programs of an earlier start: a start that takes them from the cache traces the same, one that cannot says so."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scenes import topology, traffic
from tests.kernel.conftest import ROOT
from tests.kernel.test_command import ASK, COMMAND, ENVIRONMENT
from tests.kernel.watching import NOTHING, Watch
from tracer.kernel import bcc_compiler, cache_directory, program_cache
from tracer.kernel.attach_plan import DIRECT
from tracer.kernel.bytecode import Bytecode
from tracer.kernel.loaded_programs import LoadedPrograms
from tracer.kernel.program_cache import PROGRAMS, CacheEntry
from tracer.kernel.session import Announcements, Session
from tracer.kernel.symbol_cache import SYMBOLS
from tracer.model.filter import Filter

HEAD_BYTES = len(PROGRAMS.magic) + 64
"""Length of what comes before an entry's content: magic, key and checksum, bytes."""
PORTS = ("--port", str(traffic.NODEPORT_HTTP), "--port", str(traffic.NODEPORT_LONELY))


def run(cache: Path) -> tuple[list[tuple[Any, ...]], str, float, float]:
    """One run of the command: what it shows of packets, its messages, CPU seconds, and seconds in all.

    Of a connection's later packets the kernel sends sometimes more, sometimes fewer, so only those that open it are compared.
    """
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*COMMAND, "-o", "json", "--no-kube", *PORTS, "--", *ASK],
        capture_output=True, text=True, env=ENVIRONMENT | {cache_directory.VARIABLE: str(cache)}, cwd=ROOT,
    )  # fmt: skip
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 10, done.stderr
    packets = [line for line in map(json.loads, done.stdout.splitlines()) if line["type"] == "packet"]
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    opening = [packet for packet in packets if packet.get("tcp_flags") in (None, "SYN", "SYN ACK")]
    return [shown(packet) for packet in opening], done.stderr, cpu, time.monotonic() - began


def shown(packet: dict[str, Any]) -> tuple[Any, ...]:
    """What two runs show alike of a packet: not its time, its own ports and numbers, and the pod, which is chosen at random.

    Nor that it waited for a neighbour, and that the bridge flooded copies of it, as of the first packet to a pod.
    """
    hops = [
        (
            hop["what"],
            hop["netns"] if hop["netns"] in ("client", "node") else "pod",
            *(hop.get(name) for name in ("hook", "verdict")),
            hop.get("nat", {}).get("kind"),
            "rule" in hop,
        )
        for hop in packet["hops"]
        if hop.get("clue", {}).get("what") != "neighbour" and not hop.get("clone")
    ]
    return packet.get("tcp_flags"), re.split(" by | to ", packet["verdict"])[0], hops


@pytest.mark.thorough
def test_a_warm_start_traces_the_same(node: None, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    cache = tmp_path / "cache"
    cold, cold_said, cold_cpu, cold_seconds = run(cache)
    (entry,) = cache.glob("*.bpf")
    before = entry.stat()
    warm, warm_said, warm_cpu, warm_seconds = run(cache)
    print(f"cold: {cold_cpu:.1f} CPU s, {cold_seconds:.1f} s in all, {cold_said!r}")
    print(f"warm: {warm_cpu:.1f} CPU s, {warm_seconds:.1f} s in all, {warm_said!r}")
    record_property("cold, CPU s", cold_cpu)
    record_property("warm, CPU s", warm_cpu)
    for once, again in zip(sorted(map(repr, cold)), sorted(map(repr, warm)), strict=True):
        assert once == again, f"\n{once}\n{again}"
    assert len(warm) >= 4
    assert "compiling" in cold_said and "compiling" not in warm_said
    assert "Ready after" in cold_said and "Ready after" in warm_said
    assert (entry.stat().st_ino, oct(before.st_mode & 0o777)) == (before.st_ino, "0o600")
    assert warm_cpu < cold_cpu / 2


@pytest.fixture
def cached(watch: Watch, tmp_path: Path) -> Iterator[Path]:
    """A cache with the programs of the session of the tests; the compiler gives them again instead of compiling."""
    own = tmp_path / "cache"
    kept = sorted(cache_directory.DIRECTORY.glob("*.bpf"), key=lambda path: path.stat().st_mtime)[-1]
    own.mkdir(mode=0o700)
    (own / kept.name).write_bytes(kept.read_bytes())
    (own / kept.name).chmod(0o600)
    yield own


class Start:
    """One session that starts with a cache: whether it compiled, what it said, and how many events it has of a connection.

    It leaves out the functions of matches and targets: attaching those of all modules takes longest.
    """

    def __init__(self, watch: Watch, cache: str, monkeypatch: pytest.MonkeyPatch, code: Bytecode, snaplen: int = 0) -> None:
        self.said: list[str] = []
        compilations: list[int] = []

        def compile_texts(texts: list[str], report: Callable[[int], None]) -> Bytecode:
            compilations.append(len(texts))
            return code

        monkeypatch.setattr(bcc_compiler, "compile_texts", compile_texts)
        monkeypatch.setattr(LoadedPrograms, "watch", lambda self, rows: [])
        monkeypatch.setenv(cache_directory.VARIABLE, cache)
        says = Announcements(warn=self.said.append)
        only = "" if any(row.way in DIRECT for row in watch.session.planned) else "kprobe"
        with Session(watch.kernel, NOTHING, only=only, snaplen=snaplen, announcements=says) as session:
            session.set_filter(Filter(ports=(traffic.NODEPORT_HTTP,)))
            session.drain()
            assert traffic.http_get(topology.NODE4).outcome == "answered"
            self.events = len(session.events())
        self.has_compiled = bool(compilations)


def programs(cache: Path) -> tuple[Path, bytes, Bytecode]:
    """The entry in a cache, its content, and its programs."""
    (path,) = cache.glob("*.bpf")
    data = path.read_bytes()
    return path, data, CacheEntry.from_bytes(data[HEAD_BYTES:]).code


def truncated(path: Path, data: bytes) -> None:
    path.write_bytes(data[: len(data) // 2])


def emptied(path: Path, data: bytes) -> None:
    path.write_bytes(b"")


def flipped(path: Path, data: bytes) -> None:
    path.write_bytes(data[:-4000] + bytes([data[-4000] ^ 4]) + data[-3999:])


def of_another_kernel(path: Path, data: bytes) -> None:
    """The entry of another key under this name."""
    program_cache.ProgramCache(path.parent).write(bytes(32), CacheEntry.from_bytes(data[HEAD_BYTES:]))
    (path.parent / f"{bytes(32).hex()}.bpf").rename(path)


def refused_by_the_kernel(path: Path, data: bytes) -> None:
    """Programs with a right checksum that the verifier does not accept."""
    entry = CacheEntry.from_bytes(data[HEAD_BYTES:])
    broken = Bytecode(entry.code.maps, {name: code[:-8] for name, code in entry.code.programs.items()})
    program_cache.ProgramCache(path.parent).write(bytes.fromhex(path.stem), CacheEntry(broken, entry.refused))


def writable_by_others(path: Path, data: bytes) -> None:
    path.chmod(0o666)


def of_another_user(path: Path, data: bytes) -> None:
    os.chown(path, 65534, 65534)


def a_link(path: Path, data: bytes) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def a_pipe(path: Path, data: bytes) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def in_an_open_directory(path: Path, data: bytes) -> None:
    path.parent.chmod(0o777)


SPOILED: dict[Callable[[Path, bytes], None], str] = {
    truncated: "is damaged",
    emptied: "is damaged",
    flipped: "is damaged",
    of_another_kernel: "belongs to another kernel or another version",
    refused_by_the_kernel: "the kernel refuses those that an earlier start has kept",
    writable_by_others: "others may write to",
    of_another_user: "belongs to another user",
    a_link: "is a link",
    a_pipe: "is no plain file with one name",
    in_an_open_directory: "others may write to",
}


CHECKED_ON_A_KERNEL = (truncated, of_another_kernel, refused_by_the_kernel, writable_by_others)
"""The others run on request: tests/unit/kernel/test_program_cache.py has what the cache makes of such files."""


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(spoil, id=spoil.__name__, marks=() if spoil in CHECKED_ON_A_KERNEL else pytest.mark.thorough)
        for spoil in SPOILED
    ],
)
def test_a_spoiled_cache_is_not_used(
    spoil: Callable[[Path, bytes], None], cached: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It traces all the same, says why in one sentence, and the next start finds the cache repaired, if it may be repaired."""
    path, data, code = programs(cached)
    spoil(path, data)
    start = Start(watch, str(cached), monkeypatch, code)
    assert start.has_compiled and start.events > 20
    assert len(start.said) == 1 and SPOILED[spoil] in start.said[0], start.said
    if spoil is in_an_open_directory:
        return
    after = Start(watch, str(cached), monkeypatch, code)
    assert (after.has_compiled, after.said) == (False, []) and after.events > 20


def test_a_good_cache_is_used(cached: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, code = programs(cached)
    start = Start(watch, str(cached), monkeypatch, code)
    assert (start.has_compiled, start.said) == (False, []) and start.events > 20
    other = Start(watch, str(cached), monkeypatch, code, snaplen=64)
    assert other.has_compiled and len(list(cached.iterdir())) == 2, "other programs have an entry of their own"


def test_spoiled_symbols_are_read_anew(node: None, cached: Path) -> None:
    """The second start takes what the first one asked; a damaged file and that of another boot are not used."""
    first, said, _, _ = run(cached)
    (symbols,) = cached.glob("*.symbols")
    kept = symbols.read_bytes()
    assert "anew" not in said and kept.startswith(SYMBOLS.magic)
    symbols.write_bytes(kept[:-100])
    second, said, _, _ = run(cached)
    assert said.count("anew") == 1 and f"The kernel's symbols are read anew: {symbols} is damaged." in said, said
    assert symbols.read_bytes() == kept
    third, said, _, _ = run(cached)
    assert "anew" not in said
    assert sorted(map(repr, first)) == sorted(map(repr, second)) == sorted(map(repr, third)) and len(first) >= 4


@pytest.mark.parametrize(
    "options", [pytest.param("size=64k", id="full"), pytest.param("ro", id="read-only", marks=pytest.mark.thorough)]
)
def test_a_disk_that_takes_nothing(
    options: str, cached: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, _, code = programs(cached)
    (disk := tmp_path / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=755,{options}", "tmpfs", str(disk)], check=True)
    try:
        start = Start(watch, str(disk / "cache"), monkeypatch, code)
        left = [path for path in disk.rglob("*") if path.is_file()]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert start.has_compiled and start.events > 20 and not left
    assert len(start.said) == 1 and ("No space left" in start.said[0] or "Read-only" in start.said[0]), start.said


def test_no_cache_is_wanted(cached: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, code = programs(cached)
    start = Start(watch, cache_directory.OFF, monkeypatch, code)
    assert start.has_compiled and start.said == [] and start.events > 20
