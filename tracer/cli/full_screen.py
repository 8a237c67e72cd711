# SPDX-License-Identifier: Apache-2.0
"""The command `ui`. It takes the filter and recording options of `trace`."""

from __future__ import annotations

from copy import copy
from typing import Any

import click

from tracer.cli.help import GroupedCommand
from tracer.cli.options import check_replay_options, live_options

NOT_SHARED = frozenset({"outputs", "oneline", "quiet", "follow", "version"})
"""The options of `trace` that `ui` does not have."""

HELP = """Show connections, packets and findings on the whole terminal.

Live, or with -r from captures. Filter as you type, choose a connection, and see the path of each of its packets; pause,
save. The last line and ? show the keys. It needs Textual (Debian 13: python3-textual).
"""


def command(trace: click.Command) -> click.Command:
    """Makes the command. trace: the command from which it copies options."""
    shared: list[click.Parameter] = [copy(p) for p in trace.params if p.name not in NOT_SHARED and isinstance(p, click.Option)]
    return GroupedCommand("ui", callback=ui, params=shared, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})


def ui(**options: Any) -> int:
    """Runs `ui`, live or from captures."""
    from tracer.commands import ui as view
    from tracer.commands.start_notes import StartNotes
    from tracer.util.status_line import StatusLine

    captures, verbose = options.pop("read"), options.pop("verbose")
    if captures:
        check_replay_options(click.get_current_context())
        return view.replay(captures, verbose, options)
    status = StatusLine(is_wanted=not options.pop("no_status"))
    live = live_options(options)
    with StartNotes(status) as notes:
        return view.trace(notes, verbose, live)
