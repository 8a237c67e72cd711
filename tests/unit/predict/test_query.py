# SPDX-License-Identifier: Apache-2.0
"""Queries as a user types them."""

from __future__ import annotations

import pytest

from tracer.errors import BadOption
from tracer.predict.query import PathQuery, parse


@pytest.mark.parametrize(
    ("source", "target", "protocol", "expected"),
    [
        ("10.0.0.1", "10.0.0.2:80", "tcp", PathQuery("10.0.0.1", 0, "10.0.0.2", 80, "tcp")),
        ("10.0.0.1:4000", "10.0.0.2:53", "udp", PathQuery("10.0.0.1", 4000, "10.0.0.2", 53, "udp")),
        ("fd00::1", "[fd00::2]:80", "tcp", PathQuery("fd00::1", 0, "fd00::2", 80, "tcp")),
        ("10.0.0.1", "10.0.0.2", "icmp", PathQuery("10.0.0.1", 0, "10.0.0.2", 0, "icmp")),
        ("fd00::1", "fd00::2", "icmp", PathQuery("fd00::1", 0, "fd00::2", 0, "icmpv6")),
    ],
)
def test_valid_queries(source: str, target: str, protocol: str, expected: PathQuery) -> None:
    assert parse(source, target, protocol) == expected
    assert expected.family == ("ip6" if ":" in target.rpartition(":")[0] else "ip") and expected.number > 0


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("web", "10.0.0.2:80", "--from web is no address"), ("10.0.0.1", "10.0.0.2", "needs a port for tcp"),
        ("10.0.0.1", "10.0.0.2:99999", "no port from 1 to 65535"), ("fd00::1", "10.0.0.2:80", "not of one family"),
        ("10.0.0.1", "10.0.0.2:http", "no port from 1"),
    ],
)  # fmt: skip
def test_an_invalid_query_gives_one_sentence(source: str, target: str, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        parse(source, target, "tcp")
