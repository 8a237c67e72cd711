# SPDX-License-Identifier: Apache-2.0
"""A filter as the bytes that bpf/records/filter.h reads."""

from __future__ import annotations

import ipaddress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import raw
from tracer.kernel.filter_maps import filter_record, host_roles, network_key, port_roles
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
    fields = {name: int(row[name]) for name in row.dtype.names if name not in ("spare", "tcp_flags")}
    assert fields == {
        "netns": 4026531840, "ifindex": 7, "if_netns": 4026531999, "ports": 1, "hosts": 1, "wanted": 0x11, "excluded": 0,
        "protocol": 6, "family": 4, "drops_only": 1, "packet_bound": 1, "has_tcp_flags": 0,
    }  # fmt: skip
    assert not row["tcp_flags"].any()


@pytest.mark.parametrize(
    ("given_filter", "wanted", "excluded"),
    [
        (Filter(source_ports=(80,)), 0x02, 0), (Filter(destination_ports=(80,)), 0x04, 0),
        (Filter(excluded_ports=(80,)), 0, 0x08),
        (Filter(sources=(parse_host("10.0.0.1"),)), 0x20, 0), (Filter(destinations=(parse_host("10.0.0.1"),)), 0x40, 0),
        (Filter(excluded_hosts=(parse_host("10.0.0.1"),)), 0, 0x80),
        (Filter(ports=(80,), excluded_hosts=(parse_host("10.0.0.1"),)), 0x01, 0x80),
    ],
)  # fmt: skip
def test_each_condition_on_an_end_has_its_role(given_filter: Filter, wanted: int, excluded: int) -> None:
    (row,) = filter_record(given_filter)
    assert (row["wanted"], row["excluded"]) == (wanted, excluded)
    assert row["ports"] == any(given_filter.ports_by_role) and row["hosts"] == any(given_filter.hosts_by_role)


@given(st.frozensets(st.integers(0, 255)))
def test_each_value_of_the_tcp_flags_has_its_bit(values: frozenset[int]) -> None:
    (row,) = filter_record(Filter(tcp_flags=values))
    assert row["has_tcp_flags"] == bool(values)
    assert {v for v in range(256) if int(row["tcp_flags"][v >> 5]) >> (v & 31) & 1} == values


@pytest.mark.parametrize(
    ("given_filter", "bound"),
    [(Filter(ports=(80,)), 0), (Filter(protocol=17, family=6), 0), (Filter(netns=5), 1), (Filter(ifindex=2), 1)],
)
def test_only_a_filter_on_connections_may_use_the_negative_cache(given_filter: Filter, bound: int) -> None:
    assert filter_record(given_filter)[0]["packet_bound"] == bound


PORTS = st.frozensets(st.integers(1, 65535), max_size=20)


@given(st.tuples(PORTS, PORTS, PORTS, PORTS))
def test_roles_of_ports(by_role: tuple[frozenset[int], ...]) -> None:
    words = port_roles([tuple(ports) for ports in by_role])
    assert words.shape == (4096,)
    found = {p: int(words[p >> 4]) >> (p & 15) * 4 & 15 for p in range(65536) if words[p >> 4]}
    expected = {p: sum(1 << role for role, ports in enumerate(by_role) if p in ports) for p in frozenset().union(*by_role)}
    assert {p: roles for p, roles in found.items() if roles} == expected


def test_ports_at_the_edges_of_words() -> None:
    words = port_roles(((1, 15, 16, 65535), (), (), (1,)))
    assert (int(words[0]), int(words[1]), int(words[4095])) == (0x1000_0000_0000_0090, 1, 1 << 60)
    assert np.count_nonzero(words) == 3


def longest_prefix(table: dict[bytes, bytes], address: bytes) -> int:
    """Looks an address up as a longest-prefix trie does."""
    fitting = [key for key in table if matches(key, address)]
    return table[max(fitting, key=lambda key: int.from_bytes(key[:4], "little"))][0] if fitting else 0


NETWORKS = st.lists(
    st.builds(lambda a, n: parse_host(f"10.0.{a}/{n}"), st.sampled_from(("0.0", "0.128", "4.0", "4.7")), st.integers(8, 32)),
    max_size=5,
)


@given(st.tuples(NETWORKS, NETWORKS, NETWORKS, NETWORKS), st.sampled_from(("10.0.0.0", "10.0.0.129", "10.0.4.7", "10.9.9.9")))
def test_one_look_up_finds_the_roles_of_all_networks_of_an_address(
    by_role: tuple[list[ipaddress.IPv4Network], ...], address: str
) -> None:
    expected = sum(1 << role for role, nets in enumerate(by_role) if any(ipaddress.ip_address(address) in net for net in nets))
    assert longest_prefix(host_roles(by_role), raw(address)) == expected
