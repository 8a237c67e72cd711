# SPDX-License-Identifier: Apache-2.0
"""The scripts in their shells: values are quoted on the command line, and nothing that the program prints is carried out.

A double of the program prints hostile values; bash-completion, zsh and fish are the real ones, where they are installed.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tracer.cli.completion import SCRIPTS

SCRIPT = Path(__file__).resolve().parents[4] / "tracer/cli/completion"
BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
HOSTILE = "a b;$(touch pwned)`touch pwned`*"
MOST_SECONDS = 60


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a double of the program in bin/: it prints the file `answer`, and an error."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/k8snet-trace"
    here = shlex.quote(str(tmp_path))
    program.write_text(
        f'#!/bin/sh\nprintf %s "$COMP_WORDS" >{here}/words\necho "$COMP_CWORD" >{here}/at\necho boo >&2\ncat {here}/answer\n'
    )
    program.chmod(0o755)
    (tmp_path / "answer").write_text(f"plain\t{HOSTILE}\t\n")
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    return {"PATH": f"{place}/bin:/usr/bin:/bin", "HOME": str(place), "TERM": "dumb", "LC_ALL": "C.UTF-8"}


def bash(place: Path, *words: str) -> list[str]:
    """What bash puts on the command line for the last of the words, as it splits them."""
    line = re.sub(" ([:=]) ?", r"\1", " ".join(("k8snet-trace", *words)))
    script = f"""
        . {BASH_COMPLETION}; . {SCRIPT / SCRIPTS["bash"]}
        COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1))
        COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}
        _k8snet_trace_completion; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    if not BASH_COMPLETION.exists():
        pytest.skip("bash-completion is not installed")
    ran = subprocess.run(
        ["bash", "-c", script, "bash", "k8snet-trace", *words],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (place / "pwned").exists()
    return [line for line in ran.stdout.split("\n") if line]


def test_bash_quotes_values(place: Path) -> None:
    (quoted,) = bash(place, "--netns", "")
    ran = subprocess.run(["bash", "-c", f"printf %s {quoted}"], cwd=place, capture_output=True, text=True)
    assert ran.stdout == HOSTILE and not (place / "pwned").exists()
    assert (place / "words").read_text() == "k8snet-trace\n--netns\n" and (place / "at").read_text() == "2\n"


@pytest.mark.parametrize(
    ("words", "sent", "value", "put"),
    [
        (("--service", "shop/cart", ":", "h"), "--service\nshop/cart:h", "shop/cart:http", "http"),
        (("--service", "shop/c"), "--service\nshop/c", "shop/cart:http", "shop/cart:http"),
        (("--iface", "=", "e"), "--iface=e", "eth0", "eth0"),
        (("--service", "=", "shop/cart", ":", ""), "--service=shop/cart:", "shop/cart:http", "http"),
        (("--net",), "--net", "--netns", "--netns"),
    ],
)
def test_bash_replaces_what_follows_a_colon(place: Path, words: tuple[str, ...], sent: str, value: str, put: str) -> None:
    """Bash breaks words at colons and equals signs; the program gets them whole."""
    (place / "answer").write_text(f"plain\t{value}\tsome help\n")
    assert bash(place, *words) == [put]
    assert (place / "words").read_text() == f"k8snet-trace\n{sent}"


def test_bash_completes_a_path_itself(place: Path) -> None:
    (place / "answer").write_text("file\t\t\n")
    assert bash(place, "-r", "x") == []


def test_fish_quotes_values(place: Path) -> None:
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    script = f"source {SCRIPT / SCRIPTS['fish']}; complete -C 'k8snet-trace --netns '"
    ran = subprocess.run(
        ["fish", "--no-config", "-c", script], cwd=place, env=environment(place), capture_output=True, text=True
    )
    assert ran.stderr == "" and not (place / "pwned").exists()
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == [HOSTILE], "fish quotes it where it inserts it"
    assert (place / "words").read_text().rstrip("\n") == "k8snet-trace\n--netns" and (place / "at").read_text() == "2\n"


def test_zsh_quotes_values(place: Path) -> None:
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    (place / "functions").mkdir()
    shutil.copy(SCRIPT / SCRIPTS["zsh"], place / "functions")
    setup = (
        "fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -u -D; "
        "show() { print -r -- $BUFFER >buffer.new; mv buffer.new buffer }; zle -N show; bindkey '^G' show; print ready >ready\n"
    )
    master, slave = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"], cwd=place, env=environment(place), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    try:
        os.write(master, setup.encode())
        _until(master, place / "ready")
        os.write(master, b"k8snet-trace --netns \t\x07")
        line = _until(master, place / "buffer").strip()
    finally:
        shell.kill()
        shell.wait()
        os.close(master)
    assert shlex.split(line) == ["k8snet-trace", "--netns", HOSTILE] and not (place / "pwned").exists()
    assert (place / "words").read_text() == "k8snet-trace\n--netns" and (place / "at").read_text() == "2\n"


def _until(master: int, file: Path) -> str:
    """The text of a file, once the shell has written it; the shell's output is read meanwhile, so that it does not wait."""
    end = time.monotonic() + MOST_SECONDS
    while not file.exists():
        assert time.monotonic() < end, f"{file.name} was not written"
        if select.select([master], [], [], 0.1)[0]:
            os.read(master, 4096)
    return file.read_text()
