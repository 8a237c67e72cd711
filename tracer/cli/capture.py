# SPDX-License-Identifier: Apache-2.0
"""The commands that read captures: stats, findings, diff, query, export. Each one takes the filter options of `trace`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from copy import copy
from typing import Any

import click

from tracer import export as exports
from tracer.analysis import formats, queries
from tracer.analysis import stats as statistics
from tracer.cli import filters, store_commands
from tracer.cli.help import GroupedCommand
from tracer.cli.options import alternatives
from tracer.errors import BadOption

FILTERS = filters.NAMES | {"no_rules", "count"}
"""The options of `trace` that select packets."""

_output_option = click.Option(
    ["-o", "--output", "form"], type=click.Choice(["text", "json"]), default="text", help="Output format."
)


def commands(trace: click.Command) -> list[click.Command]:
    """Returns all of these commands. trace: the command from which they copy the filter options."""
    selecting = [copy(p) for p in trace.params if p.name in FILTERS]

    def make(name: str, run: Callable[..., int], *params: click.Parameter, form: bool = True) -> click.Command:
        extra = [_output_option] if form else []
        settings = {"help_option_names": ["-h", "--help"]}
        return GroupedCommand(
            name, callback=run, params=[*params, *extra, *selecting], help=run.__doc__, context_settings=settings
        )

    files = click.Argument(["files"], metavar="FILE...", nargs=-1, required=True)
    listed = f"{alternatives(statistics.names())}; repeatable."
    chosen = click.Option(["--only"], multiple=True, metavar="NAME", help=listed)
    return [
        make("stats", stats, files, chosen),
        make("findings", findings, files),
        make("diff", diff, click.Argument(["one"], metavar="A"), click.Argument(["other"], metavar="B")),
        _query(make, files),
        make(
            "export",
            export,
            files,
            click.Argument(["target"]),
            click.Option(["--to", "form"], required=True, metavar="FORMAT", help=f"{alternatives(exports.names())}."),
            click.Option(["--redact"], is_flag=True, help="Replace addresses and names, each one always by the same one."),
            click.Option(["--as-it-came"], is_flag=True, help="pcapng: one copy of each packet, without the rewritten ones."),
            form=False,
        ),
        make("store", store_commands.store, files, *store_commands.STORE_OPTIONS, form=False),
        *store_commands.commands(),
    ]


def _query(make: Callable[..., click.Command], files: click.Argument) -> click.Command:
    """The command `query`. Its help lists the saved queries."""
    instead: Any = {"is_eager": True, "expose_value": False}
    command = make(
        "query",
        query,
        files,
        click.Argument(["sql"], metavar="SQL|NAME"),
        click.Option(["-o", "--output", "form"], type=click.Choice(formats.names()), default="table", help="Output format."),
        *store_commands.SELECTING,
        click.Option(["--engine"], type=click.Choice(store_commands.ENGINES), help="Of a store; default duckdb."),
        click.Option(["--param"], multiple=True, metavar="NAME=VALUE", help="Value of a saved query's parameter; repeatable."),
        click.Option(["--list"], is_flag=True, help="List the saved queries.", callback=_list, **instead),
        click.Option(["--show"], metavar="NAME", help="Print the SQL of a saved query.", callback=_show, **instead),
        form=False,
    )
    names = textwrap.fill(", ".join(queries.names()), 74, break_on_hyphens=False)
    command.epilog = f"\b\nSaved queries (--list describes them):\n{names}"
    return command


def _list(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    """Prints each saved query with its description and its parameters, and ends."""
    if is_given:
        for query in map(queries.find, queries.names()):
            click.echo(query.name)
            words = [query.description, *(f"{n}={p.default}: {p.meaning}" for n, p in query.parameters.items())]
            for text in words:
                click.echo(click.wrap_text(text, 80, "    ", "    "))
        context.exit(0)


def _show(context: click.Context, option: click.Parameter, name: str | None) -> None:
    """Prints the SQL of a saved query with the values of its parameters, and ends."""
    if name is not None:
        click.echo(queries.find(name).filled({}))
        context.exit(0)


def _replay_request(options: dict[str, Any]) -> Any:
    from tracer.commands.read import replay_request

    return replay_request(options)


def stats(files: tuple[str, ...], only: tuple[str, ...], form: str, **options: Any) -> int:
    """Count the contents of a capture: outcomes, deciding rules and their owners, SYNs, latencies."""
    from tracer.commands import analyze

    for name in only:
        if name not in statistics.names():
            raise BadOption(f"There is no statistic {name!r}: choose from {', '.join(statistics.names())}.")
    return analyze.stats(files, only, form, _replay_request(options))


def findings(files: tuple[str, ...], form: str, **options: Any) -> int:
    """Print the findings of a capture with their evidence. Exit status 10 when at least one is certain."""
    from tracer.commands import analyze

    return analyze.findings(files, form, _replay_request(options))


def diff(one: str, other: str, form: str, **options: Any) -> int:
    """Compare two captures: rules, outcomes, deciding rules. Exit status 1 when they differ."""
    from tracer.commands import analyze

    return analyze.diff(one, other, form, _replay_request(options))


def query(
    files: tuple[str, ...], sql: str, form: str, param: tuple[str, ...], since: str | None, until: str | None,
    node: tuple[str, ...], engine: str | None, **options: Any,
) -> int:  # fmt: skip
    """Query a capture, or a store of many nodes, by SQL or a saved query.

    The URL of a store begins with s3://, gs:// or file://. Tables: packets, connections, syns, hops, rule_hits, drops,
    findings, counters, losses. "DESCRIBE hops" lists the columns of one; docs/sql.md says what they mean. A store has
    `rulesets`, too: docs/fleet.md.
    """
    if any(map(store_commands.is_url, files)):
        return store_commands.query(files, sql, form, param, (since, until, node), engine)
    if since or until or node or engine:
        raise BadOption(
            "--since, --until, --node and --engine are for a store: s3://BUCKET/PATH, gs://BUCKET/PATH, file:///PATH."
        )
    from tracer.commands import analyze

    return analyze.query(files, sql, param, form, _replay_request(options))


def export(files: tuple[str, ...], target: str, form: str, redact: bool, as_it_came: bool, **options: Any) -> int:
    """Export the packets of a capture: pcapng, Perfetto, JSON lines, Parquet, or an HTML report for offline reading."""
    from tracer.commands import analyze

    return analyze.export_capture(files, form, target, _replay_request(options), redact, exports.ExportOptions(as_it_came))
