# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled programs: what is written is read again, and nothing else. With a kernel: tests/kernel."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tracer.kernel import cache_directory
from tracer.kernel.bpf_syscall import MapDefinition
from tracer.kernel.bytecode import Bytecode
from tracer.kernel.cache_directory import BadEntry, key
from tracer.kernel.program_cache import PROGRAMS, CacheEntry, ProgramCache

KEY, OTHER = key(["text", b"BTF"]), key(["tex", b"tBTF"])
ENTRY = CacheEntry(Bytecode((MapDefinition("events", 27, 0, 0, 4096, 0),), {"on_hook": bytes(16)}), frozenset({"on_nat for x"}))


@pytest.fixture
def cache(tmp_path: Path) -> ProgramCache:
    return ProgramCache(tmp_path / "cache")


def path_of(tmp_path: Path, number: bytes = KEY) -> Path:
    return tmp_path / "cache" / f"{number.hex()}.bpf"


def test_written_and_read(cache: ProgramCache, tmp_path: Path) -> None:
    assert cache.read(KEY) is None
    cache.write(KEY, ENTRY)
    assert cache.read(KEY) == ENTRY and cache.read(OTHER) is None
    assert oct((tmp_path / "cache").stat().st_mode & 0o777) == "0o700"
    assert oct(path_of(tmp_path).stat().st_mode & 0o777) == "0o600"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [path_of(tmp_path).name]


def test_a_key_says_where_each_part_ends() -> None:
    assert KEY != OTHER and len(KEY) == 32


def test_an_entry_of_another_key(cache: ProgramCache, tmp_path: Path) -> None:
    cache.write(OTHER, ENTRY)
    path_of(tmp_path, OTHER).rename(path_of(tmp_path))
    with pytest.raises(BadEntry, match="belongs to another kernel or another version"):
        cache.read(KEY)


def test_every_cut_and_every_flipped_bit_is_found(cache: ProgramCache, tmp_path: Path) -> None:
    cache.write(KEY, ENTRY)
    path = path_of(tmp_path)
    data = path.read_bytes()
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(BadEntry):
                cache.read(KEY)
    path.write_bytes(data + b"\0")
    with pytest.raises(BadEntry, match="is damaged"):
        cache.read(KEY)
    path.write_bytes(data)
    assert cache.read(KEY) == ENTRY


def test_a_file_is_not_followed_and_not_waited_for(cache: ProgramCache, tmp_path: Path) -> None:
    cache.write(KEY, ENTRY)
    path, elsewhere = path_of(tmp_path), tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(BadEntry, match="is a link"):
        cache.read(KEY)
    path.unlink()
    os.link(elsewhere, path)
    with pytest.raises(BadEntry, match="no plain file with one name"):
        cache.read(KEY)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadEntry, match="no plain file with one name"):
        cache.read(KEY)
    cache.write(KEY, ENTRY)
    assert cache.read(KEY) == ENTRY, "a new entry replaces what is there"


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_others_must_not_write(cache: ProgramCache, tmp_path: Path, mode: int) -> None:
    cache.write(KEY, ENTRY)
    path_of(tmp_path).chmod(mode)
    with pytest.raises(BadEntry, match="others may write to"):
        cache.read(KEY)
    cache.write(KEY, ENTRY)
    (tmp_path / "cache").chmod(mode | 0o100)
    with pytest.raises(BadEntry, match="others may write to"):
        cache.read(KEY)
    with pytest.raises(BadEntry, match="others may write to"):
        cache.write(KEY, ENTRY)


def test_a_directory_that_is_a_link(cache: ProgramCache, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "real")
    with pytest.raises(BadEntry, match="is no directory"):
        cache.write(KEY, ENTRY)
    assert not list((tmp_path / "real").iterdir())


def test_a_parent_that_others_may_change(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(BadEntry, match="everybody may write to"):
        ProgramCache(tmp_path / "open" / "cache").write(KEY, ENTRY)
    assert not (tmp_path / "open" / "cache").exists()


def test_paths_that_cannot_be_used(tmp_path: Path) -> None:
    for path, why in ((Path("cache"), "no absolute path"), (tmp_path / "missing" / "cache", "No such file")):
        with pytest.raises(BadEntry, match=why):
            ProgramCache(path).write(KEY, ENTRY)
    (tmp_path / "file").touch()
    with pytest.raises(BadEntry, match="is no directory"):
        ProgramCache(tmp_path / "file").read(KEY)


def test_an_entry_is_bounded(cache: ProgramCache, tmp_path: Path) -> None:
    cache.write(KEY, ENTRY)
    os.truncate(path_of(tmp_path), PROGRAMS.entry_bytes + 1)
    with pytest.raises(BadEntry, match="larger than any entry"):
        cache.read(KEY)


def test_the_directory_is_bounded(cache: ProgramCache, tmp_path: Path) -> None:
    """The entries used last stay, and so does everything that is no entry."""
    keys = [key([str(number)]) for number in range(PROGRAMS.most + 3)]
    cache.write(keys[0], ENTRY)
    (tmp_path / "cache" / "notes.txt").touch()
    long_ago = time.time() - 1000
    for age, each in enumerate(keys[1:]):
        cache.write(each, ENTRY)
        os.utime(path_of(tmp_path, each), (long_ago + age, long_ago + age))
        os.utime(path_of(tmp_path, keys[0]))
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert "notes.txt" in left and len(left) == PROGRAMS.most + 1
    assert path_of(tmp_path, keys[0]).name in left and path_of(tmp_path, keys[1]).name not in left


def test_a_large_directory_loses_its_oldest(cache: ProgramCache, tmp_path: Path) -> None:
    cache.write(OTHER, ENTRY)
    os.utime(path_of(tmp_path, OTHER), (1, 1))
    small = replace(PROGRAMS, most_bytes=path_of(tmp_path, OTHER).stat().st_size + 1)
    ProgramCache(tmp_path / "cache", small).write(KEY, ENTRY)
    assert cache.read(OTHER) is None and cache.read(KEY) == ENTRY


def test_what_a_killed_writer_left_is_removed(cache: ProgramCache, tmp_path: Path) -> None:
    cache.write(KEY, ENTRY)
    old, young = (tmp_path / "cache" / f".{KEY.hex()}.{digit * 16}" for digit in "ab")
    for path in (old, young):
        path.touch()
    os.utime(old, (1, 1))
    cache.write(OTHER, ENTRY)
    assert not old.exists() and young.exists(), "another tracer may be writing the young one"


def test_use_keeps_an_entry_young(cache: ProgramCache, tmp_path: Path) -> None:
    cache.write(KEY, ENTRY)
    os.utime(path_of(tmp_path), (1, 1))
    cache.read(KEY)
    assert path_of(tmp_path).stat().st_mtime > 1


def test_the_directory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, directory in (("", cache_directory.DIRECTORY), ("/srv/x", Path("/srv/x")), (cache_directory.OFF, None)):
        monkeypatch.setenv(cache_directory.VARIABLE, text)
        assert cache_directory.directory_of_environment() == directory


def test_nothing_is_kept_without_a_directory() -> None:
    cache = ProgramCache(None)
    cache.write(KEY, ENTRY)
    assert cache.read(KEY) is None and cache.problem() == ""


def test_problem(cache: ProgramCache, tmp_path: Path) -> None:
    """Doctor finds out without making the directory."""
    assert cache.problem() == "" and not (tmp_path / "cache").exists()
    cache.write(KEY, ENTRY)
    assert cache.problem() == "" and len(list((tmp_path / "cache").iterdir())) == 1
    (tmp_path / "cache").chmod(0o777)
    assert "others may write to" in cache.problem()
    assert "No such file" in ProgramCache(tmp_path / "missing" / "cache").problem()
