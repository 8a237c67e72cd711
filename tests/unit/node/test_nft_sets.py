# SPDX-License-Identifier: Apache-2.0
"""Named sets of nftables, as nft prints them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracer.node import nft_sets, tools

NAME = {"table": "kube-proxy", "name": "nodeport-ips"}


def addresses(monkeypatch: pytest.MonkeyPatch, elements: dict[str, list[Any]]) -> tuple[str, ...] | None:
    """elements: of the set, by family; nft prints no set for other families."""

    def output(name: str, *arguments: str) -> str:
        family = arguments[4] if arguments[1] == "-t" else arguments[3]
        assert name == "nft" and arguments[-1] in (family, "nodeport-ips")
        other = {"set": {"family": family, "table": "kube-proxy", "name": "cluster-ips"}}
        if "-t" in arguments:
            return json.dumps({"nftables": [{"metainfo": {}}, other, *([{"set": NAME}] if family in elements else [])]})
        return json.dumps({"nftables": [{"metainfo": {}}, {"set": {**NAME, "elem": elements[family]}}]})

    monkeypatch.setattr(tools, "output", output)
    return nft_sets.addresses("kube-proxy", "nodeport-ips")


def test_the_addresses_of_both_families(monkeypatch: pytest.MonkeyPatch) -> None:
    with_comment = {"elem": {"val": "fd00:56::10", "comment": "primary"}}
    assert addresses(monkeypatch, {"ip": ["192.168.56.10", "10.0.0.1"], "ip6": [with_comment]}) == (
        "192.168.56.10", "10.0.0.1", "fd00:56::10",
    )  # fmt: skip


def test_no_such_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses(monkeypatch, {}) == ()


@pytest.mark.parametrize("element", [{"prefix": {"addr": "10.0.0.0", "len": 8}}, 7.5, "shop", {"elem": "x"}, None])
def test_another_kind_of_element_is_not_read(element: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses(monkeypatch, {"ip": [element]}) is None


def test_a_large_set_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses(monkeypatch, {"ip": [f"10.0.{n >> 8}.{n & 255}" for n in range(nft_sets.MOST_ADDRESSES + 1)]}) is None


@pytest.mark.parametrize("printed", ["", "[]", "{}", '{"nftables": 7}', '{"nftables": [7]}'])
def test_what_cannot_be_parsed(printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "output", lambda *arguments: printed)
    assert nft_sets.addresses("kube-proxy", "nodeport-ips") is None


def test_nft_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def output(*arguments: str) -> str:
        raise OSError("nft is not installed")

    monkeypatch.setattr(tools, "output", output)
    assert nft_sets.addresses("kube-proxy", "nodeport-ips") is None
