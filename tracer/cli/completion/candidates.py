# SPDX-License-Identifier: Apache-2.0
"""Candidates for the values of options: names that exist on this machine and in its cluster.

All of them are read without root, within a limited time, and without starting a program. A name with a character that a
terminal does not print is left out.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

Source = Callable[[click.Context, str], Iterable[str]]
"""Returns names for what was typed of a value."""

MOST_NAMES = 1000
"""Number of candidates that a shell gets."""
FILES = ("FILE", "PATH", "A", "B")
"""Starts of the metavars of values that are paths."""


def is_printable(name: str) -> bool:
    """Whether a name can stand on a command line; the shell's own characters may be in it."""
    return name.isprintable()


def _interfaces(context: click.Context, typed: str) -> list[str]:
    return sorted(name for _, name in socket.if_nameindex())


def _namespaces(context: click.Context, typed: str) -> list[str]:
    from tracer.model.namespace_name import HOST
    from tracer.node.namespaces import named_files

    return [HOST, *sorted({path.name for path in named_files()})]


def _of_kube(function: str) -> Source:
    """The source that asks a function of tracer/kube/object_names.py."""

    def names(context: click.Context, typed: str) -> list[str]:
        from tracer.kube import object_names

        if context.params.get("no_kube"):
            return []
        found: list[str] = getattr(object_names, function)(
            typed, context.params.get("objects") or "", context.params.get("kubeconfig") or ""
        )
        return found

    return names


def _outputs(context: click.Context, typed: str) -> list[str]:
    from tracer import render

    return sorted(render.FORMATS)


def _exports(context: click.Context, typed: str) -> list[str]:
    from tracer import export

    return sorted(export.names())


def _statistics(context: click.Context, typed: str) -> list[str]:
    from tracer.analysis import stats

    return sorted(stats.names())


SOURCES: dict[str, Source] = {
    "--iface": _interfaces,
    "--netns": _namespaces,
    "--service": _of_kube("service_names"),
    "--pod": _of_kube("pod_names"),
    "--workload": _of_kube("workload_names"),
    "--namespace": _of_kube("namespace_names"),
    "--src": _of_kube("end_names"),
    "--dst": _of_kube("end_names"),
    "--output": _outputs,
    "--to": _exports,
    "--only": _statistics,
}
"""Where the candidates of an option come from. The option `--to` of `explain` has an address, and none of these."""


class Suggested(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """The type of a parameter, with candidates for its value."""

    def __init__(self, kind: click.ParamType, source: Source | None) -> None:  # type: ignore[type-arg]
        self._kind, self._source, self.name = kind, source, kind.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._kind.convert(value, param, ctx)

    def get_metavar(self, *args: Any, **named: Any) -> str | None:
        return self._kind.get_metavar(*args, **named)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The candidates that begin with what was typed; without a source a path, which the shell completes."""
        if self._source is None:
            return [CompletionItem(incomplete, type="file")]
        names = (name for name in self._source(ctx, incomplete) if name.startswith(incomplete) and is_printable(name))
        return [CompletionItem(name) for name, _ in zip(names, range(MOST_NAMES), strict=False)]


def attach(command: click.Command) -> None:
    """Gives the parameters of a command their candidates."""
    for param in command.params:
        source = next((SOURCES[name] for name in param.opts if name in SOURCES), None)
        if isinstance(param.type, click.Choice) or (param.metavar or "").startswith(("A[", "B:")):
            continue
        if source or _is_path(param):
            param.type = Suggested(param.type, source)


def _is_path(param: click.Parameter) -> bool:
    name = param.metavar or (str(param.name).upper() if isinstance(param, click.Argument) else "")
    return name.removesuffix("...") in (*FILES, "TARGET")
