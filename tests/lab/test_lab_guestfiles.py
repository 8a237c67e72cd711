# SPDX-License-Identifier: Apache-2.0
"""The files for the guest: arguments and environment arrive there unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import guestfiles
from tests.lab.archive import members

AWKWARD = ["a b", "it's", "$HOME", "", "new\nline", "*", "--", "-n", "ü", "\udcff", 'q"q', "\\"]


def test_arguments_arrive_as_given(tmp_path: Path) -> None:
    script = tmp_path / "command"
    show = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    script.write_bytes(guestfiles.script([sys.executable, "-c", show, *AWKWARD]))
    out = subprocess.run(["sh", str(script)], stdout=subprocess.PIPE, check=True).stdout
    assert out.split(b"\0") == [os.fsencode(argument) for argument in AWKWARD]


def test_environment() -> None:
    user = {"TERM": "xterm-256color", "COLUMNS": "7", "FORCE_COLOR": "1", "SECRET": "x"}
    plain = guestfiles.environment("6.1", "bookworm", host=user)
    assert plain["PATH"].startswith("/mnt/share/vagrant/lab/guest/bin:")
    assert (plain["LAB_KERNEL"], plain["LAB_SUITE"], plain["LANG"]) == ("6.1", "bookworm", "C.UTF-8")
    assert (plain["TERM"], plain["COLUMNS"], plain["FORCE_COLOR"]) == ("dumb", "7", "1")
    assert "LINES" not in plain
    assert "SECRET" not in plain
    size = os.terminal_size((132, 43))
    on_terminal = guestfiles.environment("6.1", "bookworm", host={"TERM": "xterm"}, terminal=size)
    assert (on_terminal["TERM"], on_terminal["COLUMNS"], on_terminal["LINES"]) == ("xterm", "132", "43")


def test_environment_survives_the_shell(tmp_path: Path) -> None:
    script = tmp_path / "environment"
    script.write_bytes(guestfiles.exports({"A": "it's $HOME\n*", "B": ""}) + b'printf \'%s|\' "$A" "$B"')
    out = subprocess.run(["sh", str(script)], stdout=subprocess.PIPE, check=True).stdout
    assert out == b"it's $HOME\n*||"


def test_archive_for_one_boot() -> None:
    found = members(guestfiles.archive(["true"], {"A": "b"}, share=True, shell=False))
    assert found["lab/options"][1] == b"MODE=run\nSHARE=1\n"
    assert found["lab/command"][1] == b"exec true\n"
    assert found["init"][0] & 0o111
    interactive = members(guestfiles.archive(["sh"], {}, share=False, shell=True))
    assert interactive["lab/options"][1] == b"MODE=shell\nSHARE=0\n"


@pytest.mark.parametrize("name", ["init", "init2", "bin/k8snet-trace"])
def test_guest_scripts_parse(name: str) -> None:
    subprocess.run(["sh", "-n", str(guestfiles.GUEST / name)], check=True)
