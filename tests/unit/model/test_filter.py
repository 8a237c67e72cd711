# SPDX-License-Identifier: Apache-2.0
"""Filters: allowed and refused values."""

from __future__ import annotations

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.errors import BadOption
from tracer.events import bpf_source
from tracer.model.filter import MAX_HOSTS, PROTOCOLS, Filter, parse_host


@pytest.mark.parametrize("port", [0, -1, 65536, 99999])
def test_ports_that_do_not_exist(port: int) -> None:
    with pytest.raises(BadOption) as e:
        Filter(ports=(80, port))
    assert str(e.value) == f"Port {port} does not exist: ports go from 1 to 65535."
    assert e.value.status == 2


def test_ports_that_exist() -> None:
    assert Filter(ports=(1, 65535)).ports == (1, 65535)


@pytest.mark.parametrize(
    ("text", "network"),
    [("10.244.0.5", "10.244.0.5/32"), ("10.244.0.5/16", "10.244.0.0/16"), ("fd00::1", "fd00::1/128"),
     ("fd00:10::7/64", "fd00:10::/64"), ("0.0.0.0/0", "0.0.0.0/0"), ("10.0.0.0/255.0.0.0", "10.0.0.0/8")],
)  # fmt: skip
def test_hosts(text: str, network: str) -> None:
    assert parse_host(text) == ipaddress.ip_network(network)


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.0/33", "fd00::/129", "example.org", "10.0.0.1:80", "10.0.0.1 "])
def test_texts_that_are_no_hosts(text: str) -> None:
    with pytest.raises(BadOption) as e:
        parse_host(text)
    assert str(e.value) == f"{text!r} is no IP address or CIDR."
    assert e.value.status == 2


@given(st.text(max_size=20))
def test_any_text_is_a_network_or_one_sentence(text: str) -> None:
    try:
        assert parse_host(text).prefixlen >= 0
    except BadOption as e:
        assert len(str(e).splitlines()) == 1


def test_too_many_hosts() -> None:
    hosts = tuple(parse_host(f"10.0.{i >> 8}.{i & 255}") for i in range(MAX_HOSTS + 1))
    assert len(Filter(hosts=hosts[:-1]).hosts) == MAX_HOSTS
    with pytest.raises(BadOption, match=r"^257 --host options are too many: 256 at most, with --src, --dst and --not-host\.$"):
        Filter(hosts=hosts)


def test_the_map_holds_as_many_hosts_as_are_allowed() -> None:
    found = re.search(r"BPF_LPM_TRIE\(hosts, struct network, u8, (\d+)\)", bpf_source.read("records/filter.h"))
    assert found
    assert int(found[1]) == MAX_HOSTS


def test_protocols() -> None:
    assert PROTOCOLS == {"tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58, "sctp": 132}
    assert Filter() == Filter((), (), 0, 0, 0, 0, 0, False), "an empty filter selects everything"
