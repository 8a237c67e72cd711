# SPDX-License-Identifier: Apache-2.0
"""The options that tell how a capture is written: of `-w FILE` and of `record FILE`."""

from __future__ import annotations

import re
from typing import Any

import click
from click.core import ParameterSource

from tracer.errors import BadOption

MOST_BYTES = 4096
"""Of a packet that may be recorded."""
LEAST = 100_000
"""Bytes of the smallest file that is worth having."""


class Bytes(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A size: a number with K, M or G behind it, of 1000."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", str(value), re.IGNORECASE)
        size = int(float(found[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[found[2].upper()]) if found else 0
        if size < LEAST:
            self.fail(f"{value!r} is no size of {LEAST // 1000} kB or more: write 500M or 2G.", param, ctx)
        return size


OPTIONS = (
    click.option("--ring", type=Bytes(), metavar="SIZE", hidden=True, help="Keep the last SIZE (500M, 2G), in one file."),
    click.option(
        "--rotate-size", type=Bytes(), metavar="SIZE", hidden=True, help="Begin another file when one is so large ..."
    ),
    click.option(
        "--rotate-time",
        type=click.FloatRange(0, min_open=True),
        metavar="S",
        hidden=True,
        help="... or so old, in seconds.",
    ),
    click.option(
        "--snaplen",
        type=click.IntRange(1, MOST_BYTES),
        metavar="N",
        hidden=True,
        help=f"Also each packet's first N bytes, from the IP header on; {MOST_BYTES} at most.",
    ),
    click.option("--redact", is_flag=True, hidden=True, help="Other names and addresses; needs --no-rules."),
)


def with_recording(function: Any) -> Any:
    """The options. A trace does not show them in its help, for there they go with -w only."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


LIVE = frozenset((
    "cmd", "write", "ring", "rotate_size", "rotate_time", "snaplen", "redact", "duration", "attach", "kubeconfig", "objects",
    "no_kube", "ready_file",
))  # fmt: skip
"""Of a trace's options, those that only a live one can follow."""


def readable(context: click.Context) -> None:
    """Raises BadOption for what was given beside -r that a capture cannot follow."""
    words = []
    for p in context.command.params:
        # click 8.2 takes an argument that is not there for one from the command line; but it is empty.
        given = context.params.get(str(p.name)) and context.get_parameter_source(str(p.name)) is ParameterSource.COMMANDLINE
        if p.name in LIVE and given:
            words.append(p.opts[-1] if isinstance(p, click.Option) else "a command")
    if words:
        raise BadOption(f"-r reads a capture, which has all of its run in it: it does not go with {', '.join(words)}.")


def recordable(options: dict[str, Any]) -> None:
    """Raises BadOption for what a capture cannot be together."""
    if options["redact"] and options["snaplen"]:
        raise BadOption("--redact leaves no payload, for nobody knows whom it names: it does not go with --snaplen.")
    if options["redact"] and not options["no_rules"]:
        raise BadOption(
            "--redact while recording needs --no-rules, for rules are recorded as the kernel has them; to share a capture with"
            " rules, record without it and give it to export."
        )
