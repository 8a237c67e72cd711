# SPDX-License-Identifier: Apache-2.0
"""Reading the C structures of bpf/: the numpy layout, and that a C compiler gives the same layout."""

from __future__ import annotations

import re
import subprocess
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tracer.events import bpf_source, cstruct, record
from tracer.events.cstruct import LayoutError
from tracer.events.detail_row import DecisionDetailRow, DetailKind
from tracer.events.nft_trace import NftHit, Trace
from tracer.events.table_trace import Shape
from tracer.packets.ipvs_connections import Act

TYPES = {"u8": "char", "u16": "short", "u32": "int", "u64": "long long"}


def compiled(tmp_path: Path, structures: str, name: str, fields: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Offset and size of each field, and of the whole structure as "", from gcc."""
    sizes = "".join(
        f'printf("{f} %zu %zu\\n", offsetof(struct {name}, {f}), sizeof(((struct {name} *)0)->{f}));' for f in fields
    )
    typedefs = "".join(f"typedef unsigned {c} {n};\n" for n, c in TYPES.items())
    main = f'int main(void) {{ {sizes} printf("- 0 %zu\\n", sizeof(struct {name})); }}'
    source = tmp_path / "sizes.c"
    source.write_text(f"#include <stdio.h>\n#include <stddef.h>\n{typedefs}{structures}\n{main}\n")
    subprocess.run(["gcc", "-o", tmp_path / "sizes", source], check=True)
    lines = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout.splitlines()
    rows = (line.split() for line in lines)
    return {name.strip("-"): (int(at), int(size)) for name, at, size in rows}


def declaration(file: str, kind: str, name: str) -> str:
    """One structure or union of a header; the other lines of the header are for bcc."""
    found = re.search(rf"^{kind} {name} \{{.*?^\}}[^;]*;", bpf_source.read(file), re.S | re.M)
    assert found, f"{kind} {name} in {file}"
    return found[0]


def numpy_layout(dtype: np.dtype[Any]) -> dict[str, tuple[int, int]]:
    fields = dtype.fields
    assert fields
    return {**{n: (f[1], f[0].itemsize) for n, f in fields.items()}, "": (0, dtype.itemsize)}


def test_a_c_compiler_gives_the_event_the_same_layout(tmp_path: Path) -> None:
    dtype = cstruct.dtype("records/event.h", "event")
    assert compiled(tmp_path, bpf_source.read("records/event.h"), "event", dtype.names or ()) == numpy_layout(dtype)


def test_a_c_compiler_gives_the_filter_the_same_layout(tmp_path: Path) -> None:
    dtype = cstruct.dtype("records/filter.h", "filter")
    text = declaration("records/filter.h", "struct", "filter")
    assert compiled(tmp_path, text, "filter", dtype.names or ()) == numpy_layout(dtype)


def test_a_c_compiler_gives_the_key_of_a_network_no_gap(tmp_path: Path) -> None:
    """A trie compares the bytes after the first four: a gap there would count as the first bits of the address."""
    text = declaration("core/packet.h", "union", "address") + declaration("records/filter.h", "struct", "network")
    assert compiled(tmp_path, text, "network", ("prefix", "addr")) == {"prefix": (0, 4), "addr": (4, 16), "": (0, 20)}


def test_event_fields() -> None:
    dtype = cstruct.dtype("records/event.h", "event")
    fields = dtype.fields
    assert fields
    kinds = {name: (fields[name][0].str, fields[name][1]) for name in ("time", "netns", "hop", "kind", "src", "table")}
    assert kinds == {
        "time": ("<u8", 0), "netns": ("<u4", 24), "hop": ("<u2", 44), "kind": ("|u1", 46), "src": ("|V16", 104),
        "table": ("|S32", 54),
    }  # fmt: skip
    assert dtype.itemsize == 304
    assert dtype.itemsize % 8 == 0, "ring buffer records are padded to 8 bytes"


def test_a_hit_and_an_event_have_their_shared_fields_at_the_same_offsets() -> None:
    hit, event = cstruct.dtype("records/nft_trace.h", "nft_rule_trace"), cstruct.dtype("records/event.h", "event")
    assert hit.itemsize == event.itemsize and hit.fields and event.fields
    shared = ("time", "packet", "object", "netns", "mark", "hop", "kind", "flags", "hook", "pf", "joint1", "joint2")
    assert {name: hit.fields[name][:2] for name in shared} == {name: event.fields[name][:2] for name in shared}


def test_the_joints_are_where_slots_begin() -> None:
    fields = cstruct.dtype("records/event.h", "event").fields
    short = cstruct.define("records/event.h", "SHORT_EVENT")
    assert fields
    assert (fields["joint1"][1], fields["joint2"][1]) == (short, 2 * (short + 8) - 8)
    assert cstruct.dtype("records/event.h", "event").itemsize == 3 * (short + 8) - 8


def test_every_field_of_the_event_is_explained() -> None:
    docs = cstruct.docs("records/event.h", "event")
    assert list(docs) == list(cstruct.dtype("records/event.h", "event").names or ())
    assert [name for name, text in docs.items() if not text] == []
    assert docs["mark"] == "skb->mark"
    assert docs["object"].startswith("DROP: code address; SOCKET, SYN, ACCEPT: socket inode;")


def test_enums() -> None:
    kinds = cstruct.members("records/event.h", "event_kind")
    first = [
        "HOOK", "TABLE", "CHAIN", "NAT", "NAT_HOOK", "SOCKET", "SYN", "ACCEPT", "REQUEST", "DROP", "IPVS", "NFT_RULE", "STEPS",
        "RULESET", "RAW",
    ]  # fmt: skip
    captured = {f"EVENT_{name}": number for number, name in enumerate(first, 1)} | {"EVENT_CLUE": 20}
    assert captured.items() <= kinds.items(), "captures have these numbers"
    assert len(set(kinds.values())) == len(kinds)
    assert max(kinds.values()) < 32, "bpf/records/loss_counters.h counts lost events in an array of 32"
    flags = list(cstruct.members("records/event.h", "event_flag").values())
    assert sorted(flags) == [1 << i for i in range(len(flags))]
    assert max(flags) < 256, "flags is one byte"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A header written by the test, read in place of those in bpf/."""
    monkeypatch.setattr(bpf_source, "directory", lambda: tmp_path)
    for reader in (cstruct.dtype, cstruct.docs, cstruct.members):
        reader.cache_clear()
    return tmp_path / "own.h"


def test_padding_is_refused(written: Path) -> None:
    written.write_text("struct own {\n    u8 a;\n    u32 b;\n};\n")
    with pytest.raises(LayoutError, match=r"^struct own would be padded: 5 bytes of fields in 8$"):
        cstruct.dtype("own.h", "own")


def test_padding_at_the_end_is_refused(written: Path) -> None:
    written.write_text("struct own {\n    u64 a;\n    u8 b;\n};\n")
    with pytest.raises(LayoutError, match="9 bytes of fields in 16"):
        cstruct.dtype("own.h", "own")


@pytest.mark.parametrize("text", ["struct other {\n    u8 a;\n};\n", "struct own {\n    u8 a;\n    union x b;\n};\n"])
def test_a_missing_structure_or_a_union_is_an_error(text: str, written: Path) -> None:
    written.write_text(text)
    with pytest.raises(LayoutError):
        cstruct.dtype("own.h", "own")


def test_structures_of_structures_and_defined_sizes(written: Path) -> None:
    written.write_text(
        "#define MANY 3\nstruct inner {\n    u16 x; /* across\n     * two lines */\n    u16 y;\n};\n"
        "struct own {\n    struct inner one;\n    u32 more[MANY]; /* u8 not_a_field; */\n    char name[8];\n};\n"
    )
    dtype = cstruct.dtype("own.h", "own")
    assert dtype.names == ("one", "more", "name")
    assert dtype["one"].names == ("x", "y")
    assert dtype["more"].shape == (3,)
    assert dtype.itemsize == 24
    assert cstruct.docs("own.h", "own") == {"one": "", "more": "u8 not_a_field;", "name": ""}


def test_comments_of_an_enum_are_no_members(written: Path) -> None:
    written.write_text("enum own {\n    ONE = 1, /* not TWO = 2 */\n    /* THREE = 3, */\n    FOUR = 4,\n};\n")
    assert cstruct.members("own.h", "own") == {"ONE": 1, "FOUR": 4}
    with pytest.raises(LayoutError, match="no enum other"):
        cstruct.members("own.h", "other")


OWN_STRUCT = "struct own {\n    u64 time;\n    u8 where[16];\n    char name[8];\n    u32 more[2];\n};\n"
OWN_ENUM = "enum own {\n    ONE = 1,\n    TWO = 2,\n};\n"


class Own(NamedTuple):
    time: int
    where: bytes
    name: bytes
    more: tuple[int, ...]


class OwnEnum(IntEnum):
    ONE = 1
    TWO = 2


def test_a_class_that_repeats_a_structure_or_an_enum_is_accepted(written: Path) -> None:
    written.write_text(OWN_STRUCT + OWN_ENUM)
    assert cstruct.structure("own.h", "own")(Own) is Own
    assert cstruct.enumeration("own.h", "own")(OwnEnum) is OwnEnum


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("    u64 time;\n", "    u64 time;\n    u64 added;\n", "added is missing"),
        ("    char name[8];\n", "", "name is not in the C text"),
        ("    char name[8];\n", "    u64 name;\n", "name is bytes, not int"),
        ("    u64 time;\n    u8 where[16];\n", "    u8 where[16];\n    u64 time;\n", "time stands before where"),
    ],
)
def test_a_class_with_other_fields_than_its_structure_is_refused(before: str, after: str, fault: str, written: Path) -> None:
    written.write_text(OWN_STRUCT.replace(before, after))
    with pytest.raises(LayoutError, match=rf"test_cstruct\.Own is not struct own in bpf/own\.h: {fault}$"):
        cstruct.structure("own.h", "own")(Own)


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("TWO = 2,", "TWO = 2,\n    THREE = 3,", "THREE is missing"),
        ("    TWO = 2,\n", "", "TWO is not in the C text"),
        ("TWO = 2", "TWO = 4", "TWO is 2, not 4"),
        ("    ONE = 1,\n    TWO = 2,\n", "    TWO = 2,\n    ONE = 1,\n", "ONE stands before TWO"),
    ],
)
def test_a_class_with_other_members_than_its_enum_is_refused(before: str, after: str, fault: str, written: Path) -> None:
    written.write_text(OWN_ENUM.replace(before, after))
    with pytest.raises(LayoutError, match=rf"test_cstruct\.OwnEnum is not enum own in bpf/own\.h: {fault}$"):
        cstruct.enumeration("own.h", "own")(OwnEnum)


def test_every_class_that_repeats_a_structure_is_compared_with_it() -> None:
    """The decorator of the class compares more, but may be forgotten."""
    for cls, file, name in (
        (record.Event, "event.h", "event"),
        (NftHit, "nft_trace.h", "nft_rule_trace"),
        (DecisionDetailRow, "decision_detail.h", "decision_detail"),
    ):
        assert cls._fields == cstruct.dtype(f"records/{file}", name).names


def test_every_class_that_repeats_an_enum_is_compared_with_it() -> None:
    for cls, file, name in (
        (record.Kind, "event.h", "event_kind"),
        (record.Flag, "event.h", "event_flag"),
        (Act, "event.h", "ipvs_act"),
        (Trace, "nft_trace.h", "nft_trace_kind"),
        (DetailKind, "decision_detail.h", "decision_detail_kind"),
        (Shape, "table_trace.h", "header_shape"),
    ):
        assert {m.name: m.value for m in cls} == cstruct.members(f"records/{file}", name)
