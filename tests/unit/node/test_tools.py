# SPDX-License-Identifier: Apache-2.0
"""The output of the system's tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.node import capabilities, tools


def test_the_output_of_a_tool_and_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, sleep = tools.find("sh"), tools.find("sleep")
    assert shell and sleep and tools.find("k8snet-no-such-tool") is None
    assert tools.printed(shell, "-c", "head -c 300000 /dev/zero | tr '\\0' x; printf '\\377'") == "x" * 300_000 + "\udcff"
    with pytest.raises(OSError, match=r"^/.*/sh failed with status 3: no rules here today$"):
        tools.printed(shell, "-c", "echo no rules here >&2; echo today >&2; exit 3")
    monkeypatch.setattr(tools, "SECONDS", 0.1)
    with pytest.raises(OSError, match=r"longer than 0\.1 s"):
        tools.printed(sleep, "5")


def test_tools_are_not_found_by_the_callers_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nft").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "nft").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert tools.find("nft") != str(tmp_path / "nft")
    monkeypatch.setattr(tools, "DIRECTORIES", str(tmp_path))
    assert tools.printed(str(tools.find("nft"))) == "mine\n"


def test_a_tool_has_no_more_rights_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not have its caller's variables either; the thread that runs it keeps its own capabilities."""
    before = capabilities.held()
    monkeypatch.setenv("XTABLES_LIBDIR", "/tmp")
    cat, env = tools.find("cat"), tools.find("env")
    assert cat and env
    status = dict(line.split(":\t", 1) for line in tools.printed(cat, "/proc/self/status").splitlines())
    most = capabilities.mask(tools.RIGHTS)
    assert not int(status["CapEff"], 16) & ~most and not int(status["CapPrm"], 16) & ~most and status["NoNewPrivs"] == "1"
    assert sorted(line.split("=")[0] for line in tools.printed(env).splitlines() if line[0] != "_") == ["LC_ALL", "PATH"]
    assert capabilities.held() == before
    programs = {
        "/usr/sbin/iptables-save": True,
        "/usr/sbin/ip6tables-legacy-save": True,
        "nft": False,
        "iptables-nft-save": True,
    }
    assert {name: tools._is_iptables(name) for name in programs} == programs


def test_the_output_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MOST_BYTES", 1 << 20)
    head = tools.find("head")
    assert head
    assert len(tools.printed(head, "-c", str((1 << 20) - 1), "/dev/zero")) == (1 << 20) - 1
    with pytest.raises(OSError, match=r"head: |more than 1 MB"):
        tools.printed(head, "-c", str(1 << 22), "/dev/zero")


def test_a_tool_has_a_bound_on_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "MOST_MEMORY", 256 << 20)
    shell = tools.find("sh")
    assert shell
    limited = "while ! grep -q '^Max address space *268435456 ' /proc/self/limits; do :; done; exec dd if=/dev/null bs="
    assert tools.printed(shell, "-c", limited + "32M") == ""
    with pytest.raises(OSError, match=r"failed with status 1: .*memory"):
        tools.printed(shell, "-c", limited + "1G")
