# SPDX-License-Identifier: Apache-2.0
"""Addresses with and without ports, of both families."""

from tracer.util.endpoint_format import format_endpoint


def test_a_port_stands_behind_its_address() -> None:
    assert format_endpoint("10.0.0.1", 80) == "10.0.0.1:80"
    assert format_endpoint("fd00::1", 80) == "[fd00::1]:80"


def test_what_has_no_port_is_an_address_only() -> None:
    assert format_endpoint("10.0.0.1") == format_endpoint("10.0.0.1", 0) == "10.0.0.1"
    assert format_endpoint("fd00::1") == "fd00::1"
