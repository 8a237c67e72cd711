# SPDX-License-Identifier: Apache-2.0
"""The lab's command: usage, and messages about missing programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import cli, host, kernels


def test_command_follows_two_dashes() -> None:
    options, command = cli.parse(["run", "--kernel=6.1", "--mem=512", "--", "sh", "-c", "x", "--", "--mem"])
    assert (options.action, options.kernel, options.mem) == ("run", ["6.1"], 512)
    assert command == ["sh", "-c", "x", "--", "--mem"]
    assert options.share == Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["boot"],
        ["run", "--kernel", "6.1"],
        ["run", "--", "true"],
        ["run", "--kernel", "6.2", "--", "true"],
        ["run", "--kernel", "6.1", "--kernel", "6.12", "--", "true"],
        ["list", "--", "true"],
    ],
)
def test_wrong_usage_is_status_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.parse(argv)
    assert ended.value.code == 2


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(host, "SYSTEM_PATH", "/nonexistent")
    with pytest.raises(host.LabError, match=r"missing mke2fs, depmod: apt-get install .*e2fsprogs kmod"):
        host.require(("mke2fs", "depmod"))
    assert set(host.RUN_TOOLS) | set(host.BUILD_TOOLS) | set(host.BOX_TOOLS) == set(host.TOOLS)


def test_list_shows_the_images_that_are_not_built(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == kernels.names()
    assert all("not built" in line for line in lines)
