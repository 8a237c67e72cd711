# SPDX-License-Identifier: Apache-2.0
"""The command `agent`: always on, with metrics; or with --stdio for `kubectl k8snet-trace`, which starts it on each node.

It takes the selecting options of `trace`.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import click

from tracer.cli.help import GroupedCommand
from tracer.cli.options import Bytes, Percent, check_replay_options, live_options
from tracer.errors import BadOption

if TYPE_CHECKING:
    from tracer.commands.always_on import AgentOptions

DEFAULT_ADDRESS = "127.0.0.1:9849"
"""The address of tracer/metrics/endpoint.py, which is not imported for the help."""
MOST_LABEL_SETS = 10_000
"""Largest value of --label-sets: a scrape stays below some megabytes."""
RECORDED = "the client's capture"
"""In place of the name of a file."""
NOT_SHARED = frozenset({"help_all", "outputs", "oneline", "times", "write", "version", "no_status", "cmd", "ring"})
"""The options of `trace` that `agent` does not have: the client prints and writes."""


def command(trace: click.Command) -> click.Command:
    """Makes the command. trace: the command from which it copies options."""
    own = [
        click.Option(["--metrics"], metavar="ADDR:PORT", help=f"Serve metrics there; default {DEFAULT_ADDRESS}."),
        click.Option(
            ["--label-sets"],
            type=click.IntRange(1, MOST_LABEL_SETS),
            default=100,
            metavar="N",
            help="Most series of a metric beside `other`; default 100.",
        ),
        click.Option(["--store"], metavar="URL", help="Also store results: s3://BUCKET/PATH, gs://..., file:///PATH."),
        click.Option(["--spool"], metavar="DIR", help="Where rows wait for the store."),
        click.Option(["--spool-size"], type=Bytes(), metavar="SIZE", help="Bound of the spool; default 1G."),
        click.Option(["--events"], is_flag=True, help="Also report findings as Events of Kubernetes."),
        click.Option(["--otlp"], metavar="URL", help="Also send failed connections and findings to a collector by OTLP/HTTP."),
        click.Option(["--cpu"], type=Percent(), metavar="PERCENT", help="Use no more of one processor: 2%; docs/agent.md."),
        click.Option(["--memory"], type=Bytes(), metavar="SIZE", help="Use no more memory: 150M."),
        click.Option(["--dump"], metavar="DIR", help="Write a capture around each new finding there."),
        click.Option(["--ring"], type=Bytes(), metavar="SIZE", help="Events kept in memory for --dump; default 16M."),
        click.Option(["--stdio"], is_flag=True, help="Frames to standard output, on credit from standard input."),
        click.Option(["--record", "records"], is_flag=True, help="Also send a capture of all that is traced."),
        click.Option(["--all-results"], is_flag=True, help="Also send the results of `doctor` that are good."),
    ]
    shared = [copy(p) for p in trace.params if p.name not in NOT_SHARED and isinstance(p, click.Option)]
    settings = {"help_option_names": ["-h", "--help"]}
    params: list[click.Parameter] = [*own, *shared]
    return GroupedCommand("agent", callback=agent, params=params, help=agent.__doc__, context_settings=settings)


def agent(
    stdio: bool, all_results: bool, records: bool, metrics: str | None, label_sets: int, store: str | None, spool: str | None,
    spool_size: int | None, events: bool, otlp: str | None, cpu: float | None, memory: int | None, dump: str | None,
    ring: int | None, **options: Any,
) -> int:  # fmt: skip
    """Count drops and SYNs all the time, as metrics for Prometheus.

    Answers /metrics, /healthz and /readyz until SIGTERM. Only packets that fail, and those that open connections, are
    traced: docs/metrics.md. With --store they also go to an object storage, for `query` and `recall`: docs/fleet.md.
    With --events findings become Events of the objects that they name; with --otlp failed connections become traces, and
    findings log records, of a collector of OpenTelemetry: docs/agent-outputs.md.
    With --cpu and --memory it leaves out packets rather than use more, and with --dump it writes a capture of the seconds
    around each new finding: docs/agent.md.

    With --stdio it serves one client, `kubectl k8snet-trace`, which starts it on each node: it explains packets, and sends
    them as frames (docs/protocol.md) while the client gives credit. It ends when the client ends, or says nothing for 15 s.
    """
    if (spool or spool_size) and not store:
        raise BadOption("--spool and --spool-size need --store.")
    if ring and not dump:
        raise BadOption("--ring needs --dump.")
    options["ring"] = None
    if not stdio:
        from tracer.commands.always_on import AgentOptions
        from tracer.pipeline.reader_budget import BudgetLimits

        place = (store, spool or "", spool_size or 0) if store else None
        budget = BudgetLimits(cpu or 0.0, memory or 0) if cpu or memory else None
        own = AgentOptions(label_sets, place, events, otlp or "", budget, dump or "", ring or 0)
        return _always_on(metrics or DEFAULT_ADDRESS, own, options | {"records": records, "all_results": all_results})
    if events:
        raise BadOption("--events cannot be combined with --stdio: the client has the findings.")
    if otlp:
        raise BadOption("--otlp cannot be combined with --stdio: the client has the results.")
    if store:
        raise BadOption("--store cannot be combined with --stdio: the client has the results.")
    if metrics:
        raise BadOption("--metrics cannot be combined with --stdio: an agent for a client ends with its client.")
    if cpu or memory or dump:
        raise BadOption("--cpu, --memory and --dump cannot be combined with --stdio: the client says how much is sent.")
    from tracer.commands import agent as agents

    captures = options.pop("read")
    if captures:
        if records:
            raise BadOption("--record traces this node: it cannot be combined with -r.")
        check_replay_options(click.get_current_context())
        return agents.run(captures, all_results, options)
    return agents.run((), all_results, live_options(options | {"write": RECORDED if records else None}))


STDIO_ONLY = {
    "read": "-r", "records": "--record", "all_results": "--all-results", "follow": "--follow", "verbose": "-v",
    "quiet": "-q", "count": "-n",
}  # fmt: skip
"""Options that need --stdio: metrics are the same with and without them, or there are no results to which they apply."""


def _always_on(metrics: str, own: AgentOptions, options: dict[str, Any]) -> int:
    """Runs the agent that serves metrics."""
    from tracer.commands import always_on

    given = [option for name, option in STDIO_ONLY.items() if options[name]]
    if given:
        raise BadOption(f"agent without --stdio prints no packets: it cannot be combined with {', '.join(given)}.")
    if own.has_events and (options["no_kube"] or options["objects"]):
        raise BadOption("--events needs the Kubernetes API: it cannot be combined with --no-kube and --objects.")
    plain = {name: value for name, value in options.items() if name not in ("read", "records", "all_results")}
    return always_on.run(metrics, own, live_options(plain | {"write": None}))
