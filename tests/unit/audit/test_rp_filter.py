# SPDX-License-Identifier: Apache-2.0
"""Strict reverse path filtering, on a tunnel only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import audits
from tests.support.findings import FakeNode
from tests.support.nodes import node
from tracer.audit.rp_filter import check
from tracer.node.routes import NetworkDevice


@pytest.mark.parametrize(("shared", "own", "count"), [("0", "1", 1), ("1", "0", 1), ("0", "0", 0), ("2", "1", 0), ("", "1", 0)])
def test_the_greater_setting_counts(shared: str, own: str, count: int, tmp_path: Path) -> None:
    settings = {"net/ipv4/conf/all/rp_filter": shared, "net/ipv4/conf/flannel.1/rp_filter": own,
                "net/ipv4/conf/eth0/rp_filter": "1"}  # fmt: skip
    state = audits.state(node("1.36.2-iptables-legacy", "S2-one"), tmp_path, FakeNode(settings=settings))
    assert list(check(state)) == [], "without a tunnel"
    routes = audits.FakeRoutes((*audits.LINKS, NetworkDevice("flannel.1", "vxlan")))
    found = list(check(replace(state, routes=routes)))
    assert len(found) == count and all(not f.certain and "flannel.1" in f.cause for f in found)
