# SPDX-License-Identifier: Apache-2.0
"""Names of network namespaces."""

from __future__ import annotations

import pytest

from tracer.model.namespace_name import HOST, NO_NETNS, Netns, distinct_name, in_netns, is_host, unnamed


@pytest.mark.parametrize(
    ("netns", "is_node", "clause"),
    [(HOST, True, ""), (NO_NETNS, False, ""), (Netns("pod-a"), False, " in pod-a"), (unnamed(7), False, " in netns 7")],
)
def test_only_the_nodes_own_namespace_is_the_host(netns: Netns, is_node: bool, clause: str) -> None:
    assert is_host(netns) is is_node and in_netns(netns) == clause


def test_no_other_namespace_has_the_nodes_name() -> None:
    assert distinct_name("node", 7) == "node (netns 7)" and not is_host(distinct_name("node", 7))
    assert distinct_name("pod-a", 7) == "pod-a"


def test_a_namespace_without_a_name_has_its_inode() -> None:
    assert unnamed(4026531840) == "netns 4026531840" and unnamed(0) is NO_NETNS


def test_a_name_is_compared_and_hashed_as_text() -> None:
    """Every hop has one, and dictionaries of packets and connections have them in their keys."""
    assert type(Netns("pod-a")) is str and {Netns("pod-a"): 1} == {"pod-a": 1}
