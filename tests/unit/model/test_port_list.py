# SPDX-License-Identifier: Apache-2.0
"""Lists and ranges of ports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.errors import BadOption
from tracer.model.port_list import parse_ports


def test_lists_ranges_and_repeated_options() -> None:
    assert parse_ports(["443,80", "8080-8082", "80"]) == (80, 443, 8080, 8081, 8082)
    assert parse_ports([" 80 , 81 "]) == (80, 81)
    assert parse_ports(["1-65535"]) == tuple(range(1, 65536))
    assert parse_ports([]) == ()


@pytest.mark.parametrize("text", ["", "http", "80,", "-80", "80-", "80-90-100", "8O", "0x50", "80 90", "٨٠", "+80"])
def test_texts_that_are_no_lists(text: str) -> None:
    with pytest.raises(BadOption) as e:
        parse_ports([text], "--dport")
    assert str(e.value) == f"--dport {text!r} is no list of ports: write 80, 80,443 or 30000-32767."


@pytest.mark.parametrize(("text", "port"), [("0", 0), ("65536", 65536), ("80,70000", 70000), ("0-80", 0), ("80-99999", 99999)])
def test_ports_that_do_not_exist(text: str, port: int) -> None:
    with pytest.raises(BadOption) as e:
        parse_ports([text])
    assert str(e.value) == f"Port {port} does not exist: ports go from 1 to 65535."


def test_a_range_that_goes_down() -> None:
    with pytest.raises(BadOption, match=r"^--port '90-80' is no range: the first port is higher than the last one\.$"):
        parse_ports(["80,90-80"])


@given(st.text(max_size=20))
def test_any_text_is_a_list_or_one_sentence(text: str) -> None:
    try:
        assert all(0 < port < 65536 for port in parse_ports([text]))
    except BadOption as e:
        assert len(str(e).splitlines()) == 1
