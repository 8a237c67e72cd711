# SPDX-License-Identifier: Apache-2.0
"""The command `top`. It takes the filter and recording options of `trace`."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import click

from tracer.cli.command_line import COMMAND, CommandWithProgram
from tracer.cli.options import alternatives, check_replay_options, live_options

if TYPE_CHECKING:
    from tracer.commands.top import TopRequest

NOT_SHARED = frozenset({"help_all", "outputs", "oneline", "times", "quiet", "count", "follow", "verbose", "version"})
"""The options of `trace` that `top` does not have."""
DIMENSIONS = ("service", "rule", "reason", "cause", "endpoint", "client", "node")
"""The words of --by. They are those of tracer/analysis/top/dimensions.py, which is not imported for the help."""
ORDERS = ("packets", "drops", "failed", "syns", "syn-ack", "time")
"""The words of --sort, those of tracer/analysis/top/orders.py."""

HELP = f"""Show a live table of the traffic: packets, drops, SYNs and times by Service, rule or another property.

\b
--by service    the Service of the rule that acted, or of the addresses
     rule       the rule that decided
     reason     why packets were dropped
     cause      why SYNs ended as they did; the packets are the SYNs alone
     endpoint   the server's address behind all translations
     client     the address that asked
     node       the node that saw the packets

On a terminal keys change what is shown, and list the packets of a row. Elsewhere one table follows the other. With -r a
whole capture is one interval. Sort by {alternatives(ORDERS, "packets")}.
"""


def own_options() -> list[click.Parameter]:
    """The options that `trace` does not have."""
    return [
        click.Option(["--by"], type=click.Choice(DIMENSIONS), default="service", help="What a row stands for.", metavar="WORD"),
        click.Option(["--sort"], type=click.Choice(ORDERS), default="packets", help="Largest first.", metavar="WORD"),
        click.Option(
            ["--rows"], type=click.IntRange(1, 400), default=20, metavar="N", help="Rows of a printed table and of JSON."
        ),
        click.Option(
            ["--interval"],
            type=click.FloatRange(0.1),
            default=2.0,
            metavar="S",
            help="Length of an interval, seconds; default 2.",
        ),
        click.Option(["--once"], is_flag=True, help="Print one interval, then exit."),
        click.Option(["-o", "--output", "form"], type=click.Choice(["text", "json"]), default="text", help="Output format."),
    ]


def command(trace: click.Command) -> click.Command:
    """Makes the command. trace: the command from which it copies options."""
    shared = [copy(p) for p in trace.params if p.name not in NOT_SHARED and isinstance(p, click.Option)]
    program = click.Argument(["cmd"], nargs=-1, type=click.UNPROCESSED, metavar=COMMAND)
    settings = {"help_option_names": ["-h", "--help"]}
    return CommandWithProgram(
        "top", callback=top, params=[*own_options(), *shared, program], help=HELP, context_settings=settings
    )


def top_request(options: dict[str, Any]) -> TopRequest:
    """Takes the options that `trace` does not have out of all options."""
    from tracer.commands import top as table

    names = ("by", "sort", "rows", "form", "interval", "once")
    return table.TopRequest(**{name: options.pop(name) for name in names})


def top(cmd: tuple[str, ...], **options: Any) -> int:
    """Runs `top`, live or from captures."""
    from tracer.commands import top as table
    from tracer.commands.start_notes import StartNotes
    from tracer.util.status_line import StatusLine

    request = top_request(options)
    captures = options.pop("read")
    if captures:
        check_replay_options(click.get_current_context())
        return table.replay(captures, request, options)
    status = StatusLine(is_wanted=not options.pop("no_status"))
    live = live_options(options)
    with StartNotes(status) as notes:
        return table.trace(cmd, request, notes, live)
