# SPDX-License-Identifier: Apache-2.0
"""The commands on a store: store, compact, recall, and the options by which `query` selects from one."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

import click

from tracer.cli.help import GroupedCommand
from tracer.errors import BadOption

SCHEMES = ("s3://", "gs://", "file://")
ENGINES = ("clickhouse", "duckdb", "spark")
"""The files of tracer/store/engines, which are not imported for the help."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d{1,6})([smhd])")

SELECTING = (
    click.Option(["--since"], metavar="TIME", help="Only events from then on: 6h, 30m, 2d ago, or 2026-11-26T03:00 (UTC)."),
    click.Option(["--until"], metavar="TIME", help="Only events before that time."),
    click.Option(["--node"], multiple=True, metavar="NAME[,NAME]", help="Only these nodes of a store; repeatable."),
)
"""Options that select from a store."""
STORE_OPTIONS = (
    click.Argument(["url"], metavar="URL"),
    click.Option(["--node"], metavar="NAME", help="Name of the node; default: that of the capture."),
)


def is_url(text: str) -> bool:
    """Whether an argument is the URL of a store."""
    return text.startswith(SCHEMES)


def commands() -> list[click.Command]:
    """Returns the commands that read and write a store alone."""
    url = click.Argument(["url"], metavar="URL")
    form = click.Option(["-o", "--output", "form"], type=click.Choice(["text", "json"]), default="text", help="Output format.")
    named = click.Option(["--finding"], metavar="NAME", help="Only findings of that name.")
    packet = click.Option(["--packet"], metavar="NODE:RUN:NUMBER", help="One packet, not findings: three columns of `packets`.")
    rules = click.Option(["--rules"], is_flag=True, help="All rules of the tables, not only the chains of the packet.")
    hours = click.Option(
        ["--after", "hours"],
        type=click.IntRange(0, 100_000),
        default=2,
        metavar="HOURS",
        help="Hours over for so long; 2.",
    )
    iceberg = click.Option(["--iceberg"], metavar="CATALOG.NAMESPACE", help="Then copy these hours to tables of Iceberg.")
    return [
        _made("compact", compact, url, hours, iceberg),
        _made("recall", recall, url, *SELECTING, named, packet, rules, form),
    ]


def _made(name: str, run: Any, *params: click.Parameter) -> click.Command:
    settings = {"help_option_names": ["-h", "--help"]}
    return GroupedCommand(name, callback=run, params=list(params), help=run.__doc__, context_settings=settings)


def store(files: tuple[str, ...], url: str, node: str | None, **options: Any) -> int:
    """Bring captures to a store of many nodes: Parquet on s3://, gs:// or file://, for `query` and other engines."""
    from tracer.commands import stored
    from tracer.commands.read import replay_request

    given = sorted((name, repr(value)) for name, value in options.items() if value)
    return stored.store(files, url, node or "", replay_request(options), str(given))


def compact(url: str, hours: int, iceberg: str | None) -> int:
    """Merge the small files of a store: one for each table, hour and node. Only hours that are over.

    With --iceberg these hours are also copied to the tables of a catalogue, each once: docs/fleet.md.
    """
    from tracer.commands import stored

    return stored.compact(url, hours, iceberg or "")


def recall(
    url: str, since: str | None, until: str | None, node: tuple[str, ...], finding: str | None, packet: str | None, rules: bool,
    form: str,
) -> int:  # fmt: skip
    """Show the findings of a store with packets and rules of that time.

    The path of the packet, the rule that decided, its owner, and the rules in force then.
    """
    from tracer.commands import stored

    key = None
    if packet:
        name, _, rest = packet.partition(":")
        run, _, number = rest.rpartition(":")
        if not name or not run or not re.fullmatch("[0-9]{1,18}", number):
            raise BadOption(f"--packet {packet!r} is not NODE:RUN:NUMBER, as in the table `packets`.")
        key = name, run, int(number)
    return stored.recall(url, finding or "", key, _selection(since, until, node), rules, form)


def query(
    files: tuple[str, ...],
    sql: str,
    form: str,
    param: tuple[str, ...],
    selecting: tuple[str | None, str | None, tuple[str, ...]],
    engine: str | None,
) -> int:
    """`query URL`. selecting: --since, --until, --node."""
    if len(files) > 1:
        raise BadOption("query takes one store, or the captures of one run.")
    parameter = click.core.ParameterSource.COMMANDLINE
    context = click.get_current_context()
    own = {"files", "sql", "form", "param", "since", "until", "node", "engine"}
    given = [p for p in context.command.params if p.name and context.get_parameter_source(p.name) is parameter]
    others = [p.opts[0] for p in given if p.name not in own]
    if others:
        raise BadOption(f"A store is queried with SQL: {', '.join(others)} cannot be combined with its URL.")
    from tracer.commands import stored

    return stored.query(files[0], sql, param, form, _selection(*selecting), engine or "duckdb")


def _selection(since: str | None, until: str | None, nodes: tuple[str, ...]) -> Any:
    from tracer.store.selected_files import StoreSelection

    now = time.time_ns() // 1000
    names = tuple(name for each in nodes for name in each.split(",") if name)
    return StoreSelection(moment(since, now) if since else 0, moment(until, now) if until else 0, names)


def moment(text: str, now: int) -> int:
    """A time, us since the epoch.

    Args:
        text: "6h" (ago), or a time of ISO 8601; without a zone it is UTC.
        now: The present time, us since the epoch.

    Raises:
        BadOption: It is neither.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        return max(1, now - int(ago[1]) * _SECONDS[ago[2]] * 1_000_000)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(f"{text!r} is no time: write 6h, 30m or 2d for a time ago, or 2026-11-26T03:00.") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(1, int(at.timestamp()) * 1_000_000 + at.microsecond)
