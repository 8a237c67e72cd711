# SPDX-License-Identifier: Apache-2.0
"""Which packets the filter of a run selects for certain where they come."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.node_views import ENDS, packet
from tests.support.traced_clusters import NODES, cluster_view
from tracer.cluster.filter_coverage import UNKNOWABLE, FilterCoverage
from tracer.model.endpoints import Endpoints

TO_NODE_PORT = Endpoints("192.168.56.1", 40001, NODES["b"], 30080)


def covers(ends: Endpoints = ENDS, node: str = "b", **options: Any) -> bool:
    return FilterCoverage.of(options, cluster_view())(node, packet(ends=ENDS.reversed), ends)


def test_without_a_filter_all_is_selected() -> None:
    assert covers() and not FilterCoverage.of({}, cluster_view()).is_by_name


def test_only_the_addresses_on_the_wire_count() -> None:
    assert (
        covers(ports=("8080",))
        and not covers(ports=("80",))
        and not covers(Endpoints("::1", 1, "::2", 2), hosts=("10.0.0.0/8",))
    )
    assert covers(destinations=(ENDS.dst,)) and not covers(sources=(ENDS.dst,))


def test_objects_are_their_addresses_and_ports() -> None:
    assert covers(services=("shop/cart",)) and not covers(Endpoints(ENDS.src, 1, ENDS.dst, 81), services=("shop/cart",))
    assert covers(ENDS.reversed, "a", services=("shop/cart",))
    assert covers(pods=("shop/shop-a",)) and not covers(pods=("shop/cart-c",))
    assert covers(destinations=("pod/shop/cart-b",)) and not covers(destinations=("pod/shop/shop-a",))


def test_a_node_port_belongs_to_an_address_of_the_node_itself() -> None:
    assert covers(TO_NODE_PORT, services=("shop/cart",)) and covers(TO_NODE_PORT, node_ports=(30080,))
    assert not covers(TO_NODE_PORT, "a", services=("shop/cart",)), "node a does not have this address"
    assert not covers(TO_NODE_PORT.reversed, "a", node_ports=(30080,))


@pytest.mark.parametrize("name", UNKNOWABLE)
def test_what_only_the_node_knows_is_never_certain(name: str) -> None:
    assert not FilterCoverage.of({name: True}, cluster_view())("b", packet(ends=ENDS.reversed), ENDS)
