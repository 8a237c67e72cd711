# SPDX-License-Identifier: Apache-2.0
"""Where a start gets its programs: from the cache, or from the compiler."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tracer.events import bpf_source
from tracer.kernel import bcc_compiler, cache_directory
from tracer.kernel.bcc_library import BccLibrary
from tracer.kernel.bytecode import Bytecode
from tracer.kernel.cache_directory import BadEntry
from tracer.kernel.program_cache import CacheEntry, ProgramCache

NOTES = Path("/sys/kernel/notes")
"""The kernel's build id."""


class ProgramSource:
    """The programs of one start.

    Args:
        headers: Texts of the generated headers by file name.
        digests: Hashes of the kernel's BTF that the programs depend on.
        library: The installed bcc.
        cache: The programs of earlier starts.
        warn: Called with a sentence when the cache cannot be used; once.
        report: Called with what is being done, as a phrase.
    """

    def __init__(
        self,
        headers: dict[str, str],
        digests: Sequence[bytes],
        library: BccLibrary,
        cache: ProgramCache,
        warn: Callable[[str], None],
        report: Callable[[str], None],
    ) -> None:
        self._text = bpf_source.whole("tracer.c", headers)
        self._cache, self._warn, self._report = cache, warn, report
        self._is_cached = True
        flags = [*bcc_compiler.FLAGS, os.environ.get("ARCH", "")]
        machine = (platform.machine(), platform.release(), platform.version())
        self._key = cache_directory.key((self._text, *flags, *machine, _build_id(), *digests, *library.identity))

    def stored(self) -> CacheEntry | None:
        """The programs that an earlier start has compiled; None = there are none, or they cannot be used."""
        try:
            return self._cache.read(self._key)
        except BadEntry as e:
            self.reject(str(e))
            return None

    @property
    def uses_cache(self) -> bool:
        """Whether nothing was wrong with the cache so far."""
        return self._is_cached

    def reject(self, why: str) -> None:
        """Warns that the cache is not used, unless this was done before. why: a clause."""
        if self._is_cached:
            self._warn(f"The programs are compiled anew: {why}.")
        self._is_cached = False

    def compiled(self) -> Bytecode:
        """Compiles the programs.

        Raises:
            NoBcc: bcc is not installed.
            CompileFailed: They do not compile here.
        """
        texts = split(self._text, len(os.sched_getaffinity(0)))
        count = program_count(self._text)
        self._report(_progress(count, 0, len(texts)))
        return bcc_compiler.compile_texts(texts, lambda done: self._report(_progress(count, done, len(texts))))

    def keep(self, code: Bytecode, refused: frozenset[str]) -> None:
        """Keeps programs for the next start. refused: those that the kernel did not load."""
        try:
            self._cache.write(self._key, CacheEntry(code, refused))
        except BadEntry as e:
            if self._is_cached:
                self._warn(f"The compiled programs cannot be kept for the next start: {e}.")
            self._is_cached = False


def _progress(programs: int, done: int, parts: int) -> str:
    """Parts are compiled at the same time; within one the compiler does not say how far it is."""
    return f"compiling {programs} programs" + (f", {done} of {parts} parts" if parts > 1 else "")


def _build_id() -> bytes:
    try:
        return NOTES.read_bytes()
    except OSError:
        return b""


LARGE_ROWS = (
    *("nft_rule", "chain", "table4", "nat", "hook", "nft_fwd"),
    *("drop", "nat_hook", "time_wait", "socket", "ipvs_nat4", "ipvs_reply"),
)
"""Rows of the probe table with the programs that take longest to compile, the longest first."""
_WAY = re.compile(r"^#define WAY_(\w+) (\w+)$", re.M)
_EXTENSION = re.compile(r"^(?:MATCH|TARGET)_(?:FENTRY|FEXIT|KPROBE|KRETPROBE)\(\w+\)$", re.M)


def program_count(text: str) -> int:
    """Number of programs in a BPF text. A row with a kretprobe has two."""
    ways = [way for _, way in _WAY.findall(text) if way != "OFF"]
    return len(ways) + ways.count("KRETPROBE") + len(_EXTENSION.findall(text))


PROCESSORS_FOR_TWO = 4
"""Processors from which two compilations run at a time: they take a third of the time away, and a quarter more CPU time."""


def split(text: str, processors: int) -> list[str]:
    """The BPF text once for each of two compilations, which together have all programs; once where processors are few.

    Each compilation parses the whole text, so more than two would cost more than they save.
    """
    rows = [name for name, way in _WAY.findall(text) if way != "OFF"]
    large = [name for name in LARGE_ROWS if name in rows]
    if processors < PROCESSORS_FOR_TWO or len(large) < 2:
        return [text]
    # The first half has the 1st, 4th, 5th, 8th, ... of the large ones, so that both take about as long.
    first = {name for place, name in enumerate(large) if place % 4 in (0, 3)} | (set(rows) - set(large))

    def only(names: set[str]) -> str:
        return _WAY.sub(lambda row: row[0] if row[1] in names else f"#define WAY_{row[1]} OFF", text)

    return [only(first), _EXTENSION.sub("", only(set(rows) - first))]
