#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the manual pages, made from the same commands and options as the help.

package/man_page.py > k8snet-trace.1
package/man_page.py kubectl-k8snet_trace > kubectl-k8snet_trace.1
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
NAME, PLUGIN = "k8snet-trace", "kubectl-k8snet_trace"
_TABLE_ROW = re.compile(r"^\| (\d+) \| (.+) \|$", re.M)


def escape(text: str) -> str:
    """A text as roff prints it: backslashes, minus signs, and no control line."""
    plain = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    return re.sub(r"^(?=[.'])", r"\\&", plain, flags=re.M)


def page(group: click.Group, version: str, date: str, statuses: list[tuple[str, str]]) -> str:
    """The manual page.

    Args:
        group: All commands; the one called `trace` is the default.
        version: Version of the program.
        date: YYYY-MM-DD.
        statuses: Exit statuses and their meanings.
    """
    trace = group.commands["trace"]
    top = click.Context(group, info_name=NAME)
    shown = {name: each for name, each in group.commands.items() if each is not trace and not each.hidden}
    lines = [
        f'.TH K8SNET\\-TRACE 1 "{date}" "{NAME} {escape(version)}" "User Commands"',
        ".SH NAME",
        rf"{escape(NAME)} \- show what a Kubernetes node really does to a packet",
        ".SH SYNOPSIS",
        *_synopsis("", trace, top),
        *(line for name, each in shown.items() for line in (".br", *_synopsis(name, each, top))),
        ".SH DESCRIPTION",
        *_text(trace.help or ""),
        ".SH OPTIONS",
        *_options(trace, top, set()),
        ".SH COMMANDS",
    ]
    context = _context(trace, "", top)
    known = {record for each in trace.get_params(context) if (record := each.get_help_record(context))}
    for name, each in shown.items():
        lines += [f'.SS "{escape(_usage(name, each, top))}"', *_text(each.help or ""), *_options(each, top, known)]
    lines += [".SH EXIT STATUS", *(line for number, text in statuses for line in (".TP", f".B {number}", escape(text)))]
    return "\n".join([*lines, FILES, *_examples(trace.epilog or ""), SEE_ALSO]) + "\n"


def plugin_page(plugin: click.Group, version: str, date: str) -> str:
    """The manual page of the plugin of kubectl.

    Args:
        plugin: Its commands; the one called `trace` is the default.
        version: Version of the program.
        date: YYYY-MM-DD.
    """
    top = click.Context(click.Group(), info_name="kubectl")
    trace = plugin.commands["trace"]
    others = {name: each for name, each in plugin.commands.items() if each is not trace}
    lines = [
        f'.TH KUBECTL\\-K8SNET_TRACE 1 "{date}" "{NAME} {escape(version)}" "User Commands"',
        ".SH NAME",
        rf"{escape(PLUGIN)} \- trace a Service on all nodes that can matter",
        ".SH SYNOPSIS",
        r".B kubectl k8snet\-trace",
        escape(_usage("", trace, top)),
    ]
    for name, each in others.items():
        lines += [".br", r".B kubectl k8snet\-trace", escape(_usage(name, each, top))]
    lines += [".SH DESCRIPTION", *_text(trace.help or ""), ".SH OPTIONS", *_options(trace, top, set()), ".SH COMMANDS"]
    context = _context(trace, "", top)
    known = {record for each in trace.get_params(context) if (record := each.get_help_record(context))}
    for name, each in others.items():
        lines += [f'.SS "{escape(_usage(name, each, top))}"', *_text(each.help or ""), *_options(each, top, known)]
    lines += [".SH EXIT STATUS", "Those of", r".BR k8snet\-trace (1)."]
    return "\n".join([*lines, *_examples(trace.epilog or ""), PLUGIN_SEE_ALSO]) + "\n"


FILES = r"""
.SH ENVIRONMENT
.TP
.B K8SNET_TRACE_CACHE
Directory of the compiled programs, in place of /var/cache/k8snet\-trace;
.B off
= they are not kept.
.TP
.B KUBECONFIG
The kubeconfig; only its first file is used.
.SH FILES
.TP
.I /var/cache/k8snet\-trace
Compiled programs, for the next start; at most 32 MB. It may be removed at any time.
.TP
.I /usr/share/doc/k8snet\-trace
The guides, and a page for each finding (of the Debian package).
""".strip()

SEE_ALSO = r"""
.SH SEE ALSO
.BR tcpdump (8),
.BR iptables (8),
.BR nft (8),
.BR kubectl (1)
""".strip()

PLUGIN_SEE_ALSO = r"""
.SH SEE ALSO
.BR k8snet\-trace (1),
.BR kubectl (1)
""".strip()


def _context(command: click.Command, name: str, top: click.Context) -> click.Context:
    return click.Context(
        command, info_name=name, parent=top, **{"help_option_names": ["-h", "--help"], **command.context_settings}
    )


def _usage(name: str, command: click.Command, top: click.Context) -> str:
    context = _context(command, name, top)
    return " ".join([*([name] if name else []), *command.collect_usage_pieces(context)])


def _synopsis(name: str, command: click.Command, top: click.Context) -> list[str]:
    return [rf".B {escape(NAME)}", escape(_usage(name, command, top))]


def _text(text: str) -> Iterator[str]:
    """The paragraphs of a help text; those after \\b keep their lines."""
    for number, paragraph in enumerate(text.replace("\f", "").strip().split("\n\n")):
        if number:
            yield ".PP"
        yield escape(" ".join(paragraph.split()))


def _options(command: click.Command, top: click.Context, known: set[tuple[str, str]]) -> Iterator[str]:
    """The options of a command in their groups; those that are known by name and text are only listed."""
    from tracer.cli.help import grouped

    context = _context(command, "", top)
    again = []
    for title, options in grouped(command, context):
        records = [record for each in options if (record := each.get_help_record(context))]
        new = [record for record in records if record not in known]
        again += [max(each.opts, key=len) for each in options if each.get_help_record(context) in known]
        if new and not known:
            yield f'.SS "{escape(title)}"'
        for first, text in new:
            yield from (".TP", rf"\fB{escape(first)}\fR", escape(text))
    if again:
        listed = ", ".join(rf"\fB{escape(name)}\fR" for name in again)
        yield from (".PP", f"As described above: {listed}.")


def _examples(epilog: str) -> Iterator[str]:
    """The examples of the help, and the note after them."""
    examples, _, note = epilog.partition("Examples:\n")[2].partition("\n\n")
    yield from (".SH EXAMPLES", ".nf", *(escape(line.strip()) for line in examples.splitlines()), ".fi")
    yield from (".SH NOTES", escape(" ".join(note.split())))


def statuses(root: Path = ROOT) -> list[tuple[str, str]]:
    """The exit statuses and their meanings, from docs/exit-status.md, without its markup."""
    found = _TABLE_ROW.findall((root / "docs/exit-status.md").read_text(encoding="utf-8"))
    return [(number, re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text).replace("`", "")) for number, text in found]


def main() -> None:
    """Prints the page that the first argument names, dated by SOURCE_DATE_EPOCH if that is set."""
    sys.path.insert(0, str(ROOT))
    from tracer import __version__
    from tracer.cli import cluster_plugin
    from tracer.cli.main import command

    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    date = time.strftime("%Y-%m-%d", time.gmtime(seconds))
    if sys.argv[1:] == [PLUGIN]:
        sys.stdout.write(plugin_page(cluster_plugin.command(), __version__, date))
    else:
        sys.stdout.write(page(command, __version__, date, statuses()))


if __name__ == "__main__":
    main()
