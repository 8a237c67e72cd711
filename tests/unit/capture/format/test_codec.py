# SPDX-License-Identifier: Apache-2.0
"""Values of a capture: a stored value is read back, and a file cannot create other objects."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.capture.format.codec import KINDS, MalformedRecord, from_json, inflate, pack, to_json, unpack
from tracer.kube.cni_cache import Sandbox
from tracer.model.kube import HostPort

scalars = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
hashable = st.recursive(scalars, lambda s: st.tuples(s, s) | st.frozensets(s, max_size=3), max_leaves=6)
values = st.recursive(
    scalars, lambda s: st.lists(s, max_size=4) | st.tuples(s, s) | st.dictionaries(hashable, s, max_size=4), max_leaves=12
)


@given(values)
def test_a_stored_value_is_read_back(value: Any) -> None:
    found = from_json(json.loads(json.dumps(to_json(value))))
    assert found == value and type(found) is type(value)


def test_data_classes_keep_their_class() -> None:
    one = Sandbox("c1", "net", "shop", "cart", ("10.0.0.1",), (HostPort(80, 8080, "tcp"),))
    assert from_json(unpack(pack(to_json([one, {"a": one}])))) == [one, {"a": one}]


def test_a_newer_field_has_its_default_and_a_removed_field_is_ignored() -> None:
    encoded = to_json(Sandbox("c1", "net", "shop", "cart"))
    del encoded["Sandbox"]["addresses"]
    encoded["Sandbox"]["colour"] = "red"
    assert from_json(encoded) == Sandbox("c1", "net", "shop", "cart")


@pytest.mark.parametrize(
    "encoded",
    [{"os.system": "ls"}, {"a": 1, "b": 2}, {}, {"bytes": "%%%"}, {"Sandbox": {"container": 1}}, {"dict": [[1]]}, {"tuple": 5}],
)
def test_anything_else_is_refused(encoded: Any) -> None:
    with pytest.raises(MalformedRecord):
        from_json(encoded)


def test_a_value_of_an_unknown_class_is_not_written() -> None:
    with pytest.raises(TypeError, match="a capture has no object"):
        to_json(object())
    assert all(kind.__dataclass_fields__ for kind in KINDS.values())


def test_a_compression_bomb_is_not_unpacked() -> None:
    stored = pack("x" * 100_000)
    assert unpack(stored) == "x" * 100_000 and len(stored) < 1000
    with pytest.raises(MalformedRecord, match="has no end"):
        inflate(stored, 1000)


def test_where_a_compressed_text_begins_and_ends() -> None:
    """zlib's own check sum is not computed: that of the row is. But a text that lacks its end is damaged."""
    stored = zlib.compress(b"text" * 100)
    assert inflate(stored[:-4] + bytes(4)) == b"text" * 100
    for damaged in (stored[:-1], stored[:4], b"", b"\x78\x00" + stored[2:], b"\x79" + stored[1:], stored[2:]):
        with pytest.raises(MalformedRecord):
            inflate(damaged)


@pytest.mark.parametrize("stored", [b"", b"\x78", b"{", None, 5, b"\x78\x9c" + b"\0" * 30, b"[" * 100_000])
def test_damaged_values_are_refused(stored: object) -> None:
    with pytest.raises(MalformedRecord):
        unpack(stored)
