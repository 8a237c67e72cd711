# SPDX-License-Identifier: Apache-2.0
"""The manual page has every command and every option that the help has."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from package import man_page
from tracer.cli import cluster_plugin
from tracer.cli.main import command

ROOT = Path(__file__).resolve().parents[2]
PAGE = man_page.page(command, "1.2.3", "2026-11-23", man_page.statuses())
PLUGIN = cluster_plugin.command()
PLUGIN_PAGE = man_page.plugin_page(PLUGIN, "1.2.3", "2026-11-23")


def section(name: str) -> str:
    """The part of the page about a command, without the markup."""
    if name == "trace":
        found = PAGE.partition("\n.SH OPTIONS\n")[2].partition("\n.SH ")[0]
    else:
        found = next(part for part in re.split(r"\n\.S[SH] ", PAGE) if part.startswith(f'"{name} '))
    return re.sub(r"\\f[BR]", "", found).replace(r"\-", "-")


@pytest.mark.parametrize("name", [name for name, each in command.commands.items() if not each.hidden])
def test_every_option_is_in_the_section_of_its_command(name: str) -> None:
    each = command.commands[name]
    context = click.Context(each, info_name=name, help_option_names=["-h", "--help"])
    options = [p for p in each.get_params(context) if isinstance(p, click.Option) and not p.hidden]
    text = section(name)
    assert len(options) >= 3
    for option in options:
        assert re.search(rf"(?<![\w-]){re.escape(max(option.opts, key=len))}(?![\w-])", text), option.opts


def test_the_page_does_not_depend_on_the_order_of_names() -> None:
    """click 8.1 keeps the names of the option for help in a set."""

    def page(*names: str) -> str:
        shared: list[click.Parameter] = [
            click.Option(["-p", "--port"], help="A port."),
            click.Option(names, is_flag=True, help="Help."),
        ]
        commands = {name: click.Command(name, params=shared, add_help_option=False) for name in ("trace", "stats")}
        return man_page.page(click.Group(commands=commands), "1", "2026-11-23", [])

    assert page("-x", "--extra") == page("--extra", "-x")


def test_every_exit_status_is_in_the_page() -> None:
    numbers = [number for number, _ in man_page.statuses()]
    assert {"0", "5", "10", "70", "130"} <= set(numbers)
    assert all(f".TP\n.B {number}\n" in PAGE for number in numbers)


def test_the_page_names_the_version_and_the_program() -> None:
    assert PAGE.startswith('.TH K8SNET\\-TRACE 1 "2026-11-23" "k8snet-trace 1.2.3" "User Commands"\n.SH NAME\n')


def test_a_line_of_text_is_never_a_request() -> None:
    assert man_page.escape(".so /etc/passwd\n'x\\") == "\\&.so /etc/passwd\n\\(aqx\\e"


def test_every_option_of_the_plugin_is_in_its_page() -> None:
    text = re.sub(r"\\f[BR]", "", PLUGIN_PAGE).replace(r"\-", "-")
    options = [p for each in PLUGIN.commands.values() for p in each.params if isinstance(p, click.Option) and not p.hidden]
    assert len(options) > 60 and PLUGIN_PAGE.startswith('.TH KUBECTL\\-K8SNET_TRACE 1 "2026-11-23" "k8snet-trace 1.2.3"')
    for option in options:
        assert re.search(rf"(?<![\w-]){re.escape(max(option.opts, key=len))}(?![\w-])", text), option.opts


@pytest.mark.parametrize("page", [PAGE, PLUGIN_PAGE], ids=["k8snet-trace", "kubectl-k8snet_trace"])
def test_roff_has_no_complaint(page: str) -> None:
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    ran = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=page, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_script_prints_the_page_of_a_given_day() -> None:
    for name, title in ((), "K8SNET"), ((man_page.PLUGIN,), "KUBECTL"):
        run = [sys.executable, str(ROOT / "package/man_page.py"), *name]
        ran = subprocess.run(run, cwd="/", capture_output=True, text=True, env={"SOURCE_DATE_EPOCH": "86400"})
        first = ran.stdout.splitlines()[0]
        assert (ran.returncode, ran.stderr) == (0, "") and '1 "1970-01-02"' in first and first.startswith(f".TH {title}")
