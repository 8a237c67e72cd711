# SPDX-License-Identifier: Apache-2.0
"""A filter as the bytes that bpf/records/filter.h reads."""

from __future__ import annotations

import ipaddress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import raw
from tracer.kernel.filter_maps import filter_record, network_key, port_bits
from tracer.model.filter import Filter, parse_host


@pytest.mark.parametrize(
    ("text", "bits"),
    [("10.244.0.0/16", 112), ("10.244.0.7", 128), ("0.0.0.0/0", 96), ("fd00::/8", 8), ("fd00::7", 128), ("::/0", 0)],
)
def test_key_of_a_network(text: str, bits: int) -> None:
    key = network_key(parse_host(text))
    assert len(key) == 20
    assert int.from_bytes(key[:4], "little") == bits
    assert key[4:] == raw(str(parse_host(text).network_address))


def matches(key: bytes, address: bytes) -> bool:
    """Compares as a longest-prefix trie does: the first bits of the data after the length."""
    bits = int.from_bytes(key[:4], "little")
    expected, found = (int.from_bytes(b, "big") >> 128 - bits for b in (key[4:], address))
    return expected == found


@given(st.ip_addresses(), st.integers(0, 128), st.ip_addresses())
def test_a_key_matches_the_addresses_of_its_network(
    base: ipaddress.IPv4Address | ipaddress.IPv6Address, bits: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> None:
    network = parse_host(f"{base}/{min(bits, base.max_prefixlen)}")
    assert matches(network_key(network), raw(str(base)))
    if base.version == address.version:
        assert matches(network_key(network), raw(str(address))) == (address in network)


def test_a_key_does_not_match_the_other_family() -> None:
    assert not matches(network_key(parse_host("0.0.0.0/0")), raw("fd00::1"))
    assert not matches(network_key(parse_host("fd00::/8")), raw("10.0.0.1"))


def test_an_empty_filter_is_all_zeros() -> None:
    row = filter_record(Filter())[0]
    assert row.tobytes() == bytes(row.nbytes)


def test_every_condition_has_its_field() -> None:
    given_filter = Filter((80,), (parse_host("10.0.0.0/8"),), 6, 4, 4026531840, 7, 4026531999, True)
    (row,) = filter_record(given_filter)
    fields = {name: int(row[name]) for name in row.dtype.names if name != "spare"}
    assert fields == {
        "netns": 4026531840, "ifindex": 7, "if_netns": 4026531999, "ports": 1, "hosts": 1, "protocol": 6, "family": 4,
        "drops_only": 1, "packet_bound": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given_filter", "bound"),
    [(Filter(ports=(80,)), 0), (Filter(protocol=17, family=6), 0), (Filter(netns=5), 1), (Filter(ifindex=2), 1)],
)
def test_only_a_filter_on_connections_may_use_the_negative_cache(given_filter: Filter, bound: int) -> None:
    assert filter_record(given_filter)[0]["packet_bound"] == bound


@given(st.sets(st.integers(1, 65535), max_size=50))
def test_port_set(ports: set[int]) -> None:
    bits = port_bits(tuple(ports))
    assert bits.shape == (1024,)
    assert set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))) == ports


def test_ports_at_the_edges_of_words() -> None:
    bits = port_bits((1, 63, 64, 65535))
    assert (int(bits[0]), int(bits[1]), int(bits[1023])) == (1 << 63 | 2, 1, 1 << 63)
    assert np.count_nonzero(bits) == 3
