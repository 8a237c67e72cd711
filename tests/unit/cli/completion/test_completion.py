# SPDX-License-Identifier: Apache-2.0
"""What the program answers when a shell completes a word."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from tracer import export, render
from tracer.cli import completion, main
from tracer.cli.completion import candidates
from tracer.node import namespaces

ROOT = Path(__file__).resolve().parents[4]


class Complete(Protocol):
    def __call__(self, *words: str, shell: str = "bash") -> list[tuple[str, str, str]]: ...


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """Returns the lines (kind, value, description) of the answer for the words of a command line; the last is incomplete."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def answer(*words: str, shell: str = "bash") -> list[tuple[str, str, str]]:
        monkeypatch.setenv("COMP_WORDS", "\n".join(("k8snet-trace", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv("_K8SNET_TRACE_COMPLETE", f"{shell}_complete")
        with pytest.raises(SystemExit) as ended:
            main.main([])
        printed = capsys.readouterr()
        assert (ended.value.code, printed.err) == (0, "")
        lines = [line.split("\t") for line in printed.out.splitlines() if line]
        return [(kind, value, text) for kind, value, text in lines]

    return answer


def values(lines: list[tuple[str, str, str]]) -> list[str]:
    return [value for kind, value, _ in lines if kind == "plain"]


def test_the_first_word_is_a_command_or_an_option(complete: Complete) -> None:
    assert set(values(complete(""))) == main.command.commands.keys() - {"trace"}
    assert values(complete("st")) == ["stats", "store"]
    assert values(complete("--net")) == ["--netns"]
    assert values(complete("--port", "80", "st")) == [], "a command is the first word"


def test_every_visible_option_of_every_command_is_offered(complete: Complete) -> None:
    for name, command in main.command.commands.items():
        own = {opt for p in command.params if not getattr(p, "hidden", False) for opt in p.opts if opt.startswith("--")}
        words = ("--",) if name == "trace" else (name, "--")
        assert own <= set(values(complete(*words))), name


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_values_of_options(complete: Complete, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: str) -> None:
    (tmp_path / "pod-a").touch()
    monkeypatch.setattr(namespaces, "_directories", lambda: (tmp_path, tmp_path / "absent"))
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0"), (3, "eth1")])
    assert values(complete("--iface", "e", shell=shell)) == ["eth0", "eth1"]
    assert values(complete("--iface=e", shell=shell)) == ["eth0", "eth1"]
    assert values(complete("--netns", "", shell=shell)) == ["node", "pod-a"]
    assert values(complete("record", "x", "--netns", "p", shell=shell)) == ["pod-a"]
    assert values(complete("-o", "", shell=shell)) == sorted(render.FORMATS)
    assert values(complete("doctor", "-o", "j", shell=shell)) == ["json"]
    assert values(complete("export", "--to", "", shell=shell)) == sorted(export.names())
    assert values(complete("--proto", "sc", shell=shell)) == ["sctp"]
    assert values(complete("explain", "--to", "", shell=shell)) == []


def test_services(complete: Complete, tmp_path: Path) -> None:
    body = {
        "kind": "Service", "metadata": {"namespace": "shop", "name": "cart"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "http", "port": 80}]},
    }  # fmt: skip
    path = tmp_path / "my objects"
    path.write_text(json.dumps(body))
    assert values(complete("--objects", f"'{path}'", "--service", "")) == ["shop/cart"], "the shell's quotes are removed"
    assert values(complete("--objects", f"'{path}'", "--service", "shop/cart:")) == ["shop/cart:http"]
    assert values(complete("--no-kube", "--service", "")) == []


def test_pods_workloads_and_namespaces(complete: Complete, tmp_path: Path) -> None:
    owner = {"kind": "StatefulSet", "name": "db", "controller": True}
    body = {"kind": "Pod", "metadata": {"namespace": "shop", "name": "db-0", "ownerReferences": [owner]}}
    path = tmp_path / "objects"
    path.write_text(json.dumps(body))
    for option, name in (
        ("--pod", "shop/db-0"), ("--workload", "shop/sts/db"), ("--namespace", "shop"),
        ("--src", "pod/shop/db-0"), ("--dst", "sts/shop/db"),
    ):  # fmt: skip
        assert values(complete("--objects", str(path), option, name[:5])) == [name], option
        assert values(complete("--no-kube", option, name[:5])) == []


def test_files(complete: Complete) -> None:
    for words in (("-r", ""), ("-w", "x"), ("--objects", ""), ("stats", ""), ("diff", "a", ""), ("--", "cu"), ("record", "")):
        assert [kind for kind, _, _ in complete(*words)] == ["file"], words


@pytest.mark.parametrize(
    "words",
    [
        ("nosuch", ""), ("--port", "http", ""), ("record", "--"), ("--service", "'open"), ("-", ""),
        ("--objects", "/no", "--service", ""),
    ],
)  # fmt: skip
def test_a_wrong_command_line_gives_no_error(complete: Complete, words: tuple[str, ...]) -> None:
    assert all(kind in ("plain", "file") for kind, _, _ in complete(*words))


def test_names_with_control_characters_are_left_out(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = ["good", "$(id)", "a\tb", "a\nplain\tx", "\x1b[2J", "\udcff"]
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(hostile)))
    assert values(complete("--iface", "")) == ["$(id)", "good"], "the shell quotes what it treats specially"


def test_the_number_of_candidates_is_bounded(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(n, f"veth{n}") for n in range(5000)])
    assert len(complete("--iface", "")) == candidates.MOST_NAMES


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_the_script_of_a_shell(shell: str) -> None:
    environment = {**os.environ, "_K8SNET_TRACE_COMPLETE": f"{shell}_source"}
    ran = subprocess.run([sys.executable, "-m", "tracer"], cwd=ROOT, env=environment, capture_output=True, text=True)
    script = (ROOT / "tracer/cli/completion" / completion.SCRIPTS[shell]).read_text()
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, script.strip(), "")


def test_completion_imports_no_heavy_module() -> None:
    """A word is completed in the time of an import of click: neither numpy nor TLS, YAML or rich are loaded for an option."""
    code = (
        "import sys; from tracer.cli.main import main\n"
        "try: main([])\n"
        "finally: print(sorted({'numpy', 'rich', 'ssl', 'yaml', 'pyroute2', 'http'} & sys.modules.keys()), file=sys.stderr)"
    )
    environment = {
        **os.environ,
        "COMP_WORDS": "k8snet-trace\n--n",
        "COMP_CWORD": "1",
        "_K8SNET_TRACE_COMPLETE": "bash_complete",
    }
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "--netns" in ran.stdout and ran.stderr == "[]\n"
