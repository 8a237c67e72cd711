# SPDX-License-Identifier: Apache-2.0
"""Files that are no capture, newer captures and damaged ones: one sentence, and all records that can be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import damaged_captures
from tests.support import captures
from tracer.capture.format import migrations
from tracer.capture.format.migrations import Converter
from tracer.capture.format.schema import VERSION
from tracer.capture.replay.capture_reader import CaptureReader


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bytes, str, Path]]:
    """A sound capture, its output, and a path for damaged copies."""
    directory = tmp_path_factory.mktemp("captures")
    data = damaged_captures.small(directory)
    path = directory / "other.k8st"
    path.write_bytes(data)
    yield data, damaged_captures.read(path)[1], path


def patched(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 21, "is empty."),
        (b"SQLite", 21, "ends before it begins: 6 bytes."),
        (b"#!/bin/sh\n" * 20, 21, "is no capture of k8snet-trace."),
        (b"\0" * 5000, 21, "is no capture of k8snet-trace."),
        (b"\x0a\x0d\x0d\x0a" * 100, 21, "is no capture of k8snet-trace."),
    ],
)
def test_other_files(tmp_path: Path, run: Any, content: bytes, status: int, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert run("-r", path) == (status, "", f"k8snet-trace: {path} {message}\n")


def test_another_sqlite_file(tmp_path: Path, run: Any) -> None:
    path = tmp_path / "x"
    patched(path, "CREATE TABLE t (a)")
    assert run("-r", path) == (21, "", f"k8snet-trace: {path} is no capture of k8snet-trace, but another SQLite file.\n")


def test_no_file_and_no_permission(tmp_path: Path, run: Any) -> None:
    path = tmp_path / "x"
    assert run("-r", path) == (21, "", f"k8snet-trace: {path} cannot be read: No such file or directory.\n")
    assert run("-r", tmp_path)[0] == 21


def test_a_newer_version_is_refused(tmp_path: Path, run: Any) -> None:
    path = captures.capture(tmp_path / "a.k8st").path
    patched(path, f"PRAGMA user_version = {VERSION + 2}")
    status, out, err = run("-r", path)
    assert (status, out) == (22, "")
    assert err == (
        f"k8snet-trace: {path} was written by a newer k8snet-trace (format {VERSION + 2}, this one reads {VERSION}):"
        f" update this one.\n"
    )


def test_a_moved_boundary_between_columns_is_damage(tmp_path: Path, run: Any) -> None:
    """One bit of SQLite's record header gives a name a byte of the value behind it; the bytes of the row stay the same."""
    path = captures.capture(tmp_path / "a.k8st").path
    with sqlite3.connect(path) as connection:
        ((name, value),) = connection.execute("SELECT name, value FROM meta WHERE name = 'clock'")
        moved = (name + value[:1].decode(), value[1:])
        connection.execute("UPDATE meta SET name = ?, value = ? WHERE name = 'clock'", moved)
    assert run("-r", path)[0] == 23


@pytest.mark.parametrize(
    ("table", "column", "type_"),
    [
        ("meta", "name", "BLOB"), ("meta", "value", "TEXT"), ("records", "kind", "BLOB"), ("records", "key", "BLOB"),
        ("batches", "began", "BLOB"), ("batches", "turns", "TEXT"),
    ],
)  # fmt: skip
def test_a_changed_type_of_a_value_is_damage(table: str, column: str, type_: str, tmp_path: Path, run: Any) -> None:
    """One bit of SQLite's record header makes a text of bytes or bytes of a text; the bytes of the row stay the same."""
    path = captures.capture(tmp_path / "a.k8st").path
    patched(path, f"UPDATE {table} SET {column} = CAST({column} AS {type_}) WHERE seq = (SELECT min(seq) FROM {table})")
    assert run("-r", path)[0] in (22, 23)


def test_an_older_version_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next version is simulated with another name for losses: a capture of this version is read by its converter."""
    path = captures.capture(tmp_path / "a.k8st").path

    def renamed(row: migrations.RecordRow) -> migrations.RecordRow:
        turn, kind, key, body = row
        return turn, {"loss": "missing"}.get(kind, kind), key, body

    converter = Converter(renamed, lambda name, value: f"not {value}" if name == "program" else value)
    monkeypatch.setattr(migrations, "CONVERTERS", {VERSION: converter})
    monkeypatch.setattr(migrations, "VERSION", VERSION + 1)
    with CaptureReader(str(path)) as capture:
        kinds = {kind for _, kind, _, _ in capture.records()}
        assert "missing" in kinds and "loss" not in kinds
        assert capture.meta["program"].startswith("not ")


def test_every_version_before_this_one_has_its_converter() -> None:
    assert set(migrations.CONVERTERS) == set(range(1, VERSION))


@pytest.mark.parametrize("share", [i / 12 for i in range(12)])
def test_a_capture_cut_anywhere(small: tuple[bytes, str, Path], share: float) -> None:
    data, sound, path = small
    path.write_bytes(data[: int(len(data) * share)])
    way, printed = damaged_captures.read(path)
    assert way in ("in-part", "not-at-all") or printed == sound


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=12))
def test_flipped_bits(small: tuple[bytes, str, Path], flips: list[tuple[float, int]]) -> None:
    """The reader prints the same, or reports that a part is missing, or that the file is no capture."""
    data, sound, path = small
    damaged = bytearray(data)
    for share, bit in flips:
        damaged[int(share * len(data))] ^= 1 << bit
    path.write_bytes(damaged)
    way, printed = damaged_captures.read(path)
    assert way != "whole" or printed == sound


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_any_damage(small: tuple[bytes, str, Path], seed: int) -> None:
    import random

    data, sound, path = small
    path.write_bytes(damaged_captures.damaged(data, random.Random(seed)))
    way, printed = damaged_captures.read(path)
    assert way != "whole" or printed == sound


def test_the_original_is_whole(small: tuple[bytes, str, Path]) -> None:
    data, sound, path = small
    path.write_bytes(data)
    assert damaged_captures.read(path) == ("whole", sound) and '"type":"packet"' in sound
