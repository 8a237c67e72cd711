# SPDX-License-Identifier: Apache-2.0
"""The commands that read captures: stats, findings, diff, query, export. Each takes the filters of a trace."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import click

FILTERS = frozenset({
    "ports", "hosts", "services", "pods", "node_ports", "host_ports", "proto", "family", "iface", "netns", "drops_only",
    "no_rules", "count",
})  # fmt: skip
"""Options of a trace that choose packets."""

_form = click.Option(
    ["-o", "--output", "form"], type=click.Choice(["text", "json"]), default="text", help="Form of the output."
)


def commands(trace: click.Command) -> list[click.Command]:
    """All of them. trace: the command whose filters they take."""
    filters = [copy(p) for p in trace.params if p.name in FILTERS]

    def make(name: str, run: Callable[..., int], *params: click.Parameter, form: bool = True) -> click.Command:
        extra = [_form] if form else []
        settings = {"help_option_names": ["-h", "--help"]}
        return click.Command(
            name, callback=run, params=[*params, *extra, *filters], help=run.__doc__, context_settings=settings
        )

    files = click.Argument(["files"], metavar="FILE...", nargs=-1, required=True)
    chosen = click.Option(
        ["--only"], multiple=True, metavar="NAME", help="latencies, owners, rules, syns or verdicts; repeatable."
    )
    return [
        make("stats", stats, files, chosen),
        make("findings", findings, files),
        make("diff", diff, click.Argument(["one"], metavar="A"), click.Argument(["other"], metavar="B")),
        make("query", query, files, click.Argument(["sql"])),
        make(
            "export",
            export,
            files,
            click.Argument(["target"]),
            click.Option(["--to", "form"], required=True, metavar="FORMAT", help="html, jsonl, parquet or pcapng."),
            click.Option(["--redact"], is_flag=True, help="Other addresses and names, the same ones for the same."),
            form=False,
        ),
    ]


def _asked(options: dict[str, Any]) -> Any:
    from tracer.commands.read import asked

    return asked(options)


def stats(files: tuple[str, ...], only: tuple[str, ...], form: str, **options: Any) -> int:
    """Count a capture: how packets ended, which rules decided and whose they are, SYNs, latencies."""
    from tracer.analysis.stats import names
    from tracer.commands import analyze
    from tracer.errors import BadOption

    for name in only:
        if name not in names():
            raise BadOption(f"There is no statistic {name!r}: choose of {', '.join(names())}.")
    return analyze.stats(files, only, form, _asked(options))


def findings(files: tuple[str, ...], form: str, **options: Any) -> int:
    """Say what was wrong in a capture, with its evidence. Exit status 10 when something certainly was."""
    from tracer.commands import analyze

    return analyze.findings(files, form, _asked(options))


def diff(one: str, other: str, form: str, **options: Any) -> int:
    """Say what differs between two captures: rules, outcomes, what decided. Exit status 1 when something does."""
    from tracer.commands import analyze

    return analyze.diff(one, other, form, _asked(options))


def query(files: tuple[str, ...], sql: str, form: str, **options: Any) -> int:
    """Ask a capture in SQL (DuckDB). Tables: packets, hops, acted, findings; "DESCRIBE hops" tells the columns of one."""
    from tracer.commands import analyze

    return analyze.query(files, sql, form, _asked(options))


def export(files: tuple[str, ...], target: str, form: str, redact: bool, **options: Any) -> int:
    """Write a capture's packets as another program's file: pcapng, JSON lines, Parquet, or a report to read offline."""
    from tracer.commands import analyze

    return analyze.to(files, form, target, _asked(options), redact)
