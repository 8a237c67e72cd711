# SPDX-License-Identifier: Apache-2.0
"""Parses a command line into the command and the program to run.

A program is run only when it stands after `--`. Any other word that is not a command is refused, so that root never runs a
program because of a typing error in the name of a command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource

from tracer.cli.help import GroupedCommand, ShortHelp, grouped, write_commands, write_options
from tracer.errors import BadOption

SEPARATOR = "--"
PROGRAM = "cmd"
"""The argument that takes the program and its arguments."""
COMMAND = "[-- CMD [ARG]...]"
"""The program and its arguments in a usage line."""


def unknown(word: str, commands: Iterable[str], program: str = "k8snet-trace") -> BadOption:
    """Returns the error for a word that is not a command and does not stand after `--`. program: what the user typed."""
    known_commands = set(commands)
    if word in known_commands:
        return BadOption(f"The command {word} must be the first word: {program} {word} [OPTIONS].")
    near = ["--help"] if word in ("help", "-help", "?") else get_close_matches(word, sorted(known_commands), n=1)
    suggestion = f", did you mean {near[0]}?" if near else "."
    return BadOption(f"No such command {word!r}{suggestion} A program to run goes after {SEPARATOR}.")


class TraceByDefault(click.Group):
    """A click group with a default command: `--port 1` means `trace --port 1`."""

    default = "trace"
    command_class = GroupedCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "-"):
            args = [self.default, *args]
        elif args[0] not in self.commands:
            raise unknown(args[0], self.commands, ctx.command_path)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. A closed pipe, as in `k8snet-trace ... | head -1`, is not an error: click would exit with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            from tracer.render.base import hang_up

            hang_up(sys.stdout)
            return 0


class CommandWithProgram(GroupedCommand):
    """A command with the argument `cmd`, which takes everything after the first `--` and nothing else."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index(SEPARATOR) if SEPARATOR in args else len(args)
        program = tuple(args[at + 1 :])
        rest = super().parse_args(ctx, args[:at])
        unexpected = ctx.params.get(PROGRAM) or ()
        if unexpected and not ctx.resilient_parsing:
            root = ctx.find_root()
            raise unknown(
                unexpected[0], root.command.commands if isinstance(root.command, click.Group) else (), root.command_path
            )
        if program:
            ctx.params[PROGRAM] = program
            ctx.set_parameter_source(PROGRAM, ParameterSource.COMMANDLINE)
        return rest


class TraceCommand(CommandWithProgram):
    """The default command. Its usage line omits its name; its help has the most used options, and lists the other commands."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.find_root().command_path, " ".join(self.collect_usage_pieces(ctx)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.meta.get(ShortHelp.KEY):
            super().format_options(ctx, formatter)
        else:
            options = ShortHelp.chosen([each for _, options in grouped(self, ctx) for each in options], ctx)
            write_options("Options, the most used ones (--help-all shows all)", options, ctx, formatter)
        group = ctx.find_root().command
        if isinstance(group, click.Group):
            write_commands([each for each in group.commands.values() if each is not self], formatter)
