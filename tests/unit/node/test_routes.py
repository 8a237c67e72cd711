# SPDX-License-Identifier: Apache-2.0
"""Routes and links that every machine has, read from the kernel that runs the tests."""

from __future__ import annotations

import pytest

from tracer.node.routes import NetworkDevice, Route, Routes


def test_the_loopback() -> None:
    routes = Routes()
    assert routes.to("127.0.0.1") == Route("local", "lo", "", "127.0.0.1") and routes.is_local("127.0.0.1")
    lo = next(link for link in routes.links() if link.name == "lo")
    assert "127.0.0.0/8" in lo.networks and lo.kind == "" and lo.ports == 0
    assert routes.links() is routes.links(), "read once"


def test_an_interface_that_does_not_exist_is_no_error() -> None:
    assert Routes().to("127.0.0.1", "10.9.9.9", "nosuchface0") == Route("")


@pytest.mark.parametrize(
    ("route", "text"),
    [
        (Route("unicast", "flannel.1", "192.168.66.0"), "via 192.168.66.0 dev flannel.1"),
        (Route("unicast", "cni0"), "dev cni0"),
        (Route("local", "lo"), "local dev lo"), (Route("unreachable"), "unreachable"), (Route(""), ""),
    ],
)  # fmt: skip
def test_the_text_of_a_route(route: Route, text: str) -> None:
    assert route.text == text


def test_a_link_has_no_kind_by_default() -> None:
    assert NetworkDevice("eth0") == NetworkDevice("eth0", "", (), 0)
