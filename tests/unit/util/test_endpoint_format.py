# SPDX-License-Identifier: Apache-2.0
"""Addresses with and without ports, of both families."""

from tracer.util.endpoint_format import format_endpoint


def test_a_port_follows_its_address() -> None:
    assert format_endpoint("10.0.0.1", 80) == "10.0.0.1:80"
    assert format_endpoint("fd00::1", 80) == "[fd00::1]:80"


def test_an_endpoint_without_a_port_is_only_an_address() -> None:
    assert format_endpoint("10.0.0.1") == format_endpoint("10.0.0.1", 0) == "10.0.0.1"
    assert format_endpoint("fd00::1") == "fd00::1"
