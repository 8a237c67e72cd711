# SPDX-License-Identifier: Apache-2.0
"""The command `agent`, which `kubectl k8snet-trace` starts on each node. It takes the selecting options of `trace`."""

from __future__ import annotations

from copy import copy
from typing import Any

import click

from tracer.cli.help import GroupedCommand
from tracer.cli.options import check_replay_options, live_options
from tracer.errors import BadOption

RECORDED = "the client's capture"
"""In place of the name of a file."""
NOT_SHARED = frozenset({"help_all", "outputs", "oneline", "times", "write", "version", "no_status", "cmd"})
"""The options of `trace` that `agent` does not have: the client prints and writes."""


def command(trace: click.Command) -> click.Command:
    """Makes the command. trace: the command from which it copies options."""
    own = [
        click.Option(["--stdio"], is_flag=True, help="Frames to standard output, on credit from standard input."),
        click.Option(["--record", "records"], is_flag=True, help="Also send a capture of all that is traced."),
        click.Option(["--all-results"], is_flag=True, help="Also send the results of `doctor` that are good."),
    ]
    shared = [copy(p) for p in trace.params if p.name not in NOT_SHARED and isinstance(p, click.Option)]
    settings = {"help_option_names": ["-h", "--help"]}
    params: list[click.Parameter] = [*own, *shared]
    made = GroupedCommand("agent", callback=agent, params=params, help=agent.__doc__, context_settings=settings)
    made.hidden = True  # a program starts it
    return made


def agent(stdio: bool, all_results: bool, records: bool, **options: Any) -> int:
    """Trace this node for a client: `kubectl k8snet-trace` starts it on each node.

    Explains packets here, and sends them as frames (docs/protocol.md) while the client gives credit. Ends when the client
    ends, or says nothing for 15 s.
    """
    from tracer.commands import agent as agents

    if not stdio:
        raise BadOption("agent needs --stdio; kubectl k8snet-trace starts it on each node.")
    captures = options.pop("read")
    if captures:
        if records:
            raise BadOption("--record traces this node: it cannot be combined with -r.")
        check_replay_options(click.get_current_context())
        return agents.run(captures, all_results, options)
    return agents.run((), all_results, live_options(options | {"write": RECORDED if records else None}))
