# SPDX-License-Identifier: Apache-2.0
"""When nft is not used to list rules: it is absent, fails, is older than an expression, is slow, or there are many sets."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracer.node import tools
from tracer.rules.nftables import nft_tool
from tracer.rules.nftables.netlink_dump import MOST_SETS_READ
from tracer.rules.nftables.nft_tool import NftTool, NftUnusable


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the nft that is used; it does not exist yet."""
    monkeypatch.setattr(tools, "DIRECTORIES", f"{tmp_path}")
    return tmp_path / "nft"


def write(script: Path, text: str) -> None:
    script.write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{text}\n")
    script.chmod(0o755)


def test_an_nft_that_works(script: Path) -> None:
    write(script, 'echo "$@"')
    assert NftTool().output("-j", "list", "ruleset", sets=MOST_SETS_READ) == "-j list ruleset\n"


def test_no_nft(script: Path) -> None:
    with pytest.raises(NftUnusable, match=r"^nft is not installed$"):
        NftTool().output("list")


@pytest.mark.parametrize("status", [0, 1])
def test_an_nft_that_is_older_than_an_expression(script: Path, status: int) -> None:
    """Some versions leave the expression out and end with status 0."""
    write(script, f"echo 'table ip t {{ }}'; echo 'list: Error: unknown expression type' >&2; exit {status}")
    with pytest.raises(NftUnusable, match=rf"nft failed with status {status}: list: Error: unknown expression type"):
        NftTool().output("list")


def test_a_warning_is_no_failure(script: Path) -> None:
    write(script, "echo done; echo '# Warning: table ip nat is managed by iptables-nft, do not touch!' >&2")
    assert NftTool().output("list") == "done\n"


def test_a_slow_nft_is_not_run_again_for_a_while(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nft_tool, "NFT_SECONDS", 0.2)
    write(script, f"echo run >> {script}.log; exec sleep 9")
    tool = NftTool()
    for _ in range(3):
        with pytest.raises(NftUnusable, match=r"nft took longer than 0.2 s"):
            tool.output("list")
    assert Path(f"{script}.log").read_text() == "run\n"
    write(script, "echo fast")
    later = time.monotonic() + nft_tool.PAUSE_SECONDS
    monkeypatch.setattr(nft_tool, "time", SimpleNamespace(monotonic=lambda: later))
    assert tool.output("list") == "fast\n"


def test_nft_is_not_run_where_there_are_many_sets(script: Path) -> None:
    write(script, f"touch {script}.log")
    with pytest.raises(
        NftUnusable, match=r"^there are 44,448 sets and maps, and nft takes time by the square of their number$"
    ):
        NftTool().output("list", sets=44_448)
    assert not Path(f"{script}.log").exists()
