# SPDX-License-Identifier: Apache-2.0
"""Options that need more than one line: outputs, and writing a capture with `-w FILE` or `record FILE`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tracer.errors import BadOption
from tracer.model.time_form import TimeForm

if TYPE_CHECKING:
    from tracer.pipeline.sinks import OutputSpec

MOST_SNAPLEN_BYTES = 4096
"""Maximum number of bytes that can be recorded of a packet."""
LEAST_PERCENT = 0.1
"""Smallest budget, percent of one processor."""
LEAST_FILE_BYTES = 100_000
"""Size limit of the smallest useful capture file, bytes."""


def alternatives(names: Sequence[str], first: str = "") -> str:
    """Lists names for a help text: "html, jsonl or pcapng". first: the one that is named before all others."""
    *others, last = sorted(names, key=lambda name: name != first)
    return f"{', '.join(others)} or {last}" if others else last


class Bytes(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A size in bytes: a number, optionally followed by K, M or G (powers of 1000)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", str(value), re.IGNORECASE)
        size = int(float(found[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[found[2].upper()]) if found else 0
        if size < LEAST_FILE_BYTES:
            self.fail(f"{value!r} is not a size of {LEAST_FILE_BYTES // 1000} kB or more: write 500M or 2G.", param, ctx)
        return size


class Percent(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A share of one processor in percent, "2%" or "150": as a factor."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)%?", str(value))
        percent = float(found[1]) if found else 0.0
        if percent < LEAST_PERCENT:
            self.fail(f"{value!r} is no share of a processor of {LEAST_PERCENT:g} % or more: write 2% or 150%.", param, ctx)
        return percent / 100


class OutputFormat(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """FORMAT or FORMAT:FILE, as an OutputSpec."""

    name = "output"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OutputSpec:
        from tracer.pipeline import sinks

        return value if isinstance(value, sinks.OutputSpec) else sinks.parse(value)


def chosen_outputs(context: click.Context) -> Sequence[OutputSpec]:
    """The outputs of a run: those given by -o, and that of --oneline.

    Without either, text; on a terminal it changes to one packet a line when packets are many, but not with --verbose or
    --follow, and not in a replay. Each one shows times as --time says.
    """
    times = TimeForm(context.params["times"])
    return tuple(replace(spec, times=times) for spec in _outputs(context))


def _outputs(context: click.Context) -> Sequence[OutputSpec]:
    """The formats and files of a run."""
    from tracer.pipeline import sinks

    options = context.params
    is_default = context.get_parameter_source("outputs") is ParameterSource.DEFAULT
    given: Sequence[OutputSpec] = () if is_default else options["outputs"]
    if options["oneline"]:
        return (sinks.parse("oneline"), *given)
    if given:
        return given
    may_change = sys.stdout.isatty() and not (options["verbose"] or options["follow"] or options["read"])
    return (sinks.parse("auto" if may_change else "text"),)


OPTIONS = (
    click.option("--ring", type=Bytes(), metavar="SIZE", hidden=True, help="Keep only the last SIZE (500M, 2G), in one file."),
    click.option("--rotate-size", type=Bytes(), metavar="SIZE", hidden=True, help="Start a new file when one reaches SIZE."),
    click.option(
        "--rotate-time",
        type=click.FloatRange(0, min_open=True),
        metavar="S",
        hidden=True,
        help="Start a new file after S seconds.",
    ),
    click.option(
        "--snaplen",
        type=click.IntRange(1, MOST_SNAPLEN_BYTES),
        metavar="N",
        hidden=True,
        help=f"Also record the first N bytes of each packet, from the IP header on; {MOST_SNAPLEN_BYTES} at most.",
    ),
    click.option("--redact", is_flag=True, hidden=True, help="Replace names and addresses; needs --no-rules."),
)


def with_recording(function: Any) -> Any:
    """Adds the recording options. The help of `trace` hides them, because there they need -w."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


LIVE_OPTIONS = frozenset((
    "cmd", "write", "ring", "rotate_size", "rotate_time", "snaplen", "redact", "duration", "attach", "kubeconfig", "objects",
    "no_kube", "ready_file", "no_status", "interval", "once",
))  # fmt: skip
"""The options of `trace` and `top` that only a live run can use."""


def check_replay_options(context: click.Context) -> None:
    """Raises BadOption for options that cannot be combined with -r."""
    rejected = []
    for p in context.command.params:
        # click 8.2 reports a missing argument as one from the command line, with an empty value.
        given = context.params.get(str(p.name)) and context.get_parameter_source(str(p.name)) is ParameterSource.COMMANDLINE
        if p.name in LIVE_OPTIONS and given:
            rejected.append(p.opts[-1] if isinstance(p, click.Option) else "a command")
    if rejected:
        raise BadOption(f"-r replays a finished run from a capture: it cannot be combined with {', '.join(rejected)}.")


def check_recording_options(options: dict[str, Any]) -> None:
    """Raises BadOption for recording options that exclude each other."""
    if options["redact"] and options["snaplen"]:
        raise BadOption("--redact cannot be combined with --snaplen: a payload can contain names that cannot be replaced.")
    if options["redact"] and not options["no_rules"]:
        raise BadOption(
            "--redact while recording needs --no-rules, because rules are recorded unchanged. To share a capture with rules,"
            " record it without --redact and use `export --redact`."
        )


def live_options(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a live run. options: those of the command line, which are changed. Raises BadOption."""
    sizes = [options.pop(name) for name in ("ring", "rotate_size", "rotate_time")]
    target = options.pop("write")
    if (any(sizes) or options["snaplen"] or options["redact"]) and not target:
        raise BadOption("--ring, --rotate-size, --rotate-time, --snaplen and --redact need -w FILE.")
    check_recording_options(options)
    return {**options, "target": target, "sizes": sizes}
