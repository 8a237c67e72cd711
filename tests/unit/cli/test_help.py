# SPDX-License-Identifier: Apache-2.0
"""Groups of options in the help."""

from __future__ import annotations

import re
from typing import Any

import click

from tracer.cli import help as help_text
from tracer.cli import main


def context(name: str) -> click.Context:
    return click.Context(main.command.commands[name], info_name=name, help_option_names=["-h", "--help"])


def test_each_visible_option_is_in_one_group() -> None:
    for name, command in main.command.commands.items():
        groups = help_text.grouped(command, context(name))
        listed = [option for _, options in groups for option in options]
        shown = [p for p in command.get_params(context(name)) if isinstance(p, click.Option) and not p.hidden]
        assert sorted(map(id, listed)) == sorted(map(id, shown)), name
        assert len({title for title, _ in groups}) == len(groups)


def test_the_groups_name_options_that_exist_once() -> None:
    named = [name for names in help_text.GROUPS.values() for name in names]
    exist = {p.name for command in main.command.commands.values() for p in command.params if isinstance(p, click.Option)}
    assert len(named) == len(set(named)) and set(named) <= exist


def test_an_option_without_a_group_is_in_the_last_one() -> None:
    options: list[click.Parameter] = [click.Option([f"--new{n}"]) for n in range(help_text.MOST_UNGROUPED)]
    command = help_text.GroupedCommand("x", params=[click.Option(["--port", "ports"]), *options])
    titles = [title for title, _ in help_text.grouped(command, click.Context(command))]
    assert titles == ["Which packets", help_text.OTHERS]


def test_the_short_help_names_options_that_exist_and_leads_to_all_others(run: Any) -> None:
    trace = main.command.commands["trace"]
    options = {p.name: p for p in trace.get_params(context("trace")) if isinstance(p, click.Option) and not p.hidden}
    assert options.keys() >= help_text.ShortHelp.NAMES and 15 <= len(help_text.ShortHelp.NAMES) <= 20
    short, whole = run("--help")[1], run("--help-all")[1]
    shown = {name for name, p in options.items() if re.search(rf"^  .*{max(p.opts, key=len)}\b", short, re.M)}
    assert {
        name for name in shown if "--help" not in options[name].opts
    } == help_text.ShortHelp.NAMES and "--help-all shows all" in short
    assert all(re.search(rf"^  .*{max(p.opts, key=len)}\b", whole, re.M) for p in options.values())
    for text in (short, whole):
        assert all(
            re.search(rf"^  {name}  ", text, re.M)
            for name, each in main.command.commands.items()
            if name != "trace" and not each.hidden
        )


def test_few_options_need_no_groups() -> None:
    command = main.command.commands["doctor"]
    assert [title for title, _ in help_text.grouped(command, context("doctor"))] == [help_text.OTHERS]


def test_a_summary_is_a_clause() -> None:
    for command in main.command.commands.values():
        text = help_text.summary(command)
        assert text and text[0].isupper() and not text.endswith((".", "...")) and ":" not in text
