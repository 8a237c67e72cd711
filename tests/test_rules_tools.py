"""What the system's tools print."""

from __future__ import annotations

import pytest

from tracer.rules import tools


def test_what_a_tool_prints_and_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, sleep = tools.find("sh"), tools.find("sleep")
    assert shell and sleep and tools.find("k8snet-no-such-tool") is None
    assert tools.printed(shell, "-c", "head -c 300000 /dev/zero | tr '\\0' x; printf '\\377'") == "x" * 300_000 + "\udcff"
    with pytest.raises(OSError, match="no rules here"):
        tools.printed(shell, "-c", "echo no rules here >&2; exit 3")
    monkeypatch.setattr(tools, "SECONDS", 0.1)
    with pytest.raises(OSError, match=r"longer than 0\.1 s"):
        tools.printed(sleep, "5")
