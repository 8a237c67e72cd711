# SPDX-License-Identifier: Apache-2.0
"""The help text: options in groups, and the other commands as a list."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tracer.cli import filters

GROUPS = {
    "Which packets": filters.NAMES | {"source", "target"},
    "Kubernetes objects": ("kubeconfig", "objects", "no_kube"),
    "Output": ("by", "sort", "rows", "interval", "once", "outputs", "oneline", "form", "quiet", "verbose", "follow",
               "times", "color"),
    "Of a store": ("since", "until", "node", "engine"),
    "Captures": ("write", "read", "ring", "rotate_size", "rotate_time", "snaplen", "redact"),
}  # fmt: skip
"""The options of each group, by the names of their parameters. An option that no group names is in the last group."""
OTHERS = "Options"
"""Title of the last group."""
COLUMN = 24
"""Width of the column with the options, characters; a longer one has its text on the next line."""


MOST_UNGROUPED = 8
"""Number of options that need no groups."""


def grouped(command: click.Command, context: click.Context) -> list[tuple[str, list[click.Option]]]:
    """Returns the title and the visible options of each group. Few options are one group."""
    visible = [each for each in command.get_params(context) if isinstance(each, click.Option) and not each.hidden]
    if len(visible) <= MOST_UNGROUPED:
        return [(OTHERS, visible)]
    named = {name: title for title, names in GROUPS.items() for name in names}
    titles = [named.get(str(each.name), OTHERS) for each in visible]
    return [
        (title, [each for each, of in zip(visible, titles, strict=True) if of == title])
        for title in (*GROUPS, OTHERS)
        if title in titles
    ]


def summary(command: click.Command) -> str:
    """What a command does, in one clause: the beginning of its help, without a full stop."""
    sentence = command.get_short_help_str(MOST_SUMMARY)
    return sentence.partition(":")[0].removesuffix(".")


MOST_SUMMARY = 200
"""Length of a summary, characters: more than any has, so that none is cut off."""


class ShortHelp:
    """The help of a command with many options: the most used ones, and all of them with --help-all.

    Attributes:
        NAMES: The parameters that the short help has.
    """

    NAMES = frozenset({
        "ports", "hosts", "sources", "destinations", "services", "pods", "proto", "drops_only", "outputs", "times", "quiet",
        "verbose", "follow", "write", "read", "count", "duration", "version", "help_all",
    })  # fmt: skip
    KEY = "tracer.cli.help.is_whole"
    """Of the context's `meta`: all options are wanted."""

    @classmethod
    def option(cls) -> click.Option:
        """The option --help-all."""

        def show(context: click.Context, option: click.Parameter, is_given: bool) -> None:
            if is_given:
                context.meta[cls.KEY] = True
                click.echo(context.get_help(), color=context.color)
                context.exit(0)

        text = "Show all options and exit."
        return click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=text)

    @classmethod
    def chosen(cls, options: list[click.Option], context: click.Context) -> list[click.Option]:
        """The options that the help shows."""
        is_whole = context.meta.get(cls.KEY)
        return [each for each in options if is_whole or each.name in cls.NAMES or "--help" in each.opts]


class GroupedCommand(click.Command):
    """A command with its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, options in grouped(self, ctx):
            write_options(title, options, ctx, formatter)


def write_options(title: str, options: Sequence[click.Option], ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Writes one group of options."""
    records = [record for each in options if (record := each.get_help_record(ctx))]
    with formatter.section(title):
        # The same width of the first column in each group.
        formatter.write_dl([(first.ljust(COLUMN), text) for first, text in records], col_max=COLUMN)


def write_commands(commands: Sequence[click.Command], formatter: click.HelpFormatter) -> None:
    """Writes the list of commands."""
    with formatter.section("Commands, each with its own --help"):
        formatter.write_dl([(str(each.name), summary(each)) for each in commands if not each.hidden])
