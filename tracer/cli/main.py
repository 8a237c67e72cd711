# SPDX-License-Identifier: Apache-2.0
"""The command line: `k8snet-trace [OPTIONS] [-- CMD]` and the named commands."""

from __future__ import annotations

import logging
import sys
from copy import copy
from typing import Any

import click

from tracer import __version__, log, render
from tracer.cli import completion, full_screen, live_table, node_agent, standard_streams
from tracer.cli.capture import commands
from tracer.cli.command_line import COMMAND, CommandWithProgram, TraceByDefault, TraceCommand
from tracer.cli.filters import with_filters
from tracer.cli.help import ShortHelp
from tracer.cli.options import (
    OutputFormat,
    alternatives,
    check_recording_options,
    check_replay_options,
    chosen_outputs,
    live_options,
    with_recording,
)
from tracer.commands.start_notes import StartNotes
from tracer.errors import NO_ROOM, UNEXPECTED, BadOption, OutputNotWritten, TraceError
from tracer.model.filter import PROTOCOLS
from tracer.model.time_form import TimeForm
from tracer.util import color
from tracer.util.escape import escaped, escaped_line
from tracer.util.line_folding import folded, terminal_columns
from tracer.util.status_line import StatusLine
from tracer.util.worker import place_of

_log = logging.getLogger(__name__)

TIME_FORMS = [form.value for form in TimeForm]

EXAMPLES = """\b
Examples:
  k8snet-trace --port 30285                  all packets of that NodePort
  k8snet-trace --service shop/cart:http --drops-only
  k8snet-trace --port 30285 -- curl -m 2 http://192.168.56.10:30285/

The tracer changes nothing on the node: no rule, no sysctl, no counter.
"""


@click.group(cls=TraceByDefault, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Show what a Kubernetes node really does to a packet."""


def with_kube(function: Any) -> Any:
    """Adds the options that set the source of the Kubernetes objects."""
    function = click.option("--no-kube", is_flag=True, help="Do not use the API: names come from rules only.")(function)
    function = click.option(
        "--objects",
        metavar="FILE",
        help="Objects from FILE, not the API: output of `kubectl get svc,endpointslices,pods,nodes -A -o json`.",
    )(function)
    return click.option("--kubeconfig", metavar="FILE", help="Kubeconfig for access to the Kubernetes API.")(function)


@command.command("trace", cls=TraceCommand, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@with_filters
@with_kube
@click.option("-n", "--count", type=click.IntRange(0), default=0, metavar="N", help="Stop after N packets.")
@click.option("--duration", type=click.FloatRange(0), default=0, metavar="S", help="Stop after S seconds.")
@click.option(
    "-o",
    "--output",
    "outputs",
    type=OutputFormat(),
    multiple=True,
    default=("text",),
    metavar="FMT[:FILE]",
    help=f"{alternatives(render.FORMATS, first='text')}; repeatable.",
)
@click.option("--oneline", is_flag=True, hidden=True, help="One packet a line: -o oneline, beside other outputs.")
@click.option(
    "--time",
    "times",
    type=click.Choice(TIME_FORMS),
    default=TIME_FORMS[0],
    metavar="FORM",
    help=f"{alternatives(TIME_FORMS)}.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only failures, findings and the summary.")
@click.option("-v", "--verbose", is_flag=True, help="Show every hook and table, not only decisions.")
@click.option(
    "--attach",
    type=click.Choice(["auto", "kprobe"]),
    default="auto",
    help="auto: fentry where possible; kprobe: never fentry.",
)
@click.option("--no-rules", is_flag=True, help="Verdicts without the deciding rules: costs less.")
@click.option("--follow", is_flag=True, help="Print a timeline per connection, not packets.")
@click.option("-w", "--write", metavar="FILE", help="Also record everything; see record --help.")
@click.option("-r", "--read", multiple=True, metavar="FILE", help="Explain captures; needs no root and no cluster.")
@with_recording
@click.option("--no-status", is_flag=True, hidden=True, help="No line on a terminal that says how far the run is.")
@click.option("--ready-file", metavar="PATH", help="Gets the tracer's pid when all probes are on.")
@click.version_option(__version__, prog_name="k8snet-trace")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar=COMMAND)
def trace(cmd: tuple[str, ...], **options: Any) -> int:
    """Print each packet's path through this node: hooks, NAT, sockets, drops.

    Changes nothing on the node. Runs until Ctrl-C, a limit, or the end of CMD. A packet matches by its own addresses and
    ports, or by those of its connection before or after NAT.
    """
    path = options.pop("read")
    options["outputs"] = chosen_outputs(click.get_current_context())
    del options["oneline"], options["times"]
    if path:
        check_replay_options(click.get_current_context())
        from tracer.commands import read as captures

        return captures.read(path, options)
    status = StatusLine(is_wanted=not options.pop("no_status"))
    live = live_options(options)
    with StartNotes(status) as notes:
        from tracer.commands import trace as tracing

        return tracing.trace(cmd, notes=notes, **live)


trace.params.append(ShortHelp.option())

NOT_RECORDED = frozenset({"help_all", "read", "outputs", "oneline", "times", "quiet", "write", "count", "follow", "version"})
"""The options of `trace` that `record` does not have."""


def record(file: str, cmd: tuple[str, ...], ring: Any, rotate_size: Any, rotate_time: Any, **options: Any) -> int:
    """Record to FILE without explaining, for nodes with more packets than can be printed.

    To explain later, on any machine and without root: k8snet-trace -r FILE. The recording options --ring to --redact also
    work with `trace -w FILE`.
    """
    check_recording_options(options)
    sizes = (ring, rotate_size, rotate_time)
    with StartNotes(StatusLine(is_wanted=not options.pop("no_status"))) as notes:
        from tracer.commands import trace as tracing

        return tracing.trace(cmd, outputs=(), notes=notes, count=0, target=file, sizes=sizes, record_only=True, **options)


def _recording() -> click.Command:
    """Makes the command `record`: the options of `trace` without its output options."""
    params = [copy(p) for p in trace.params if p.name not in NOT_RECORDED and isinstance(p, click.Option)]
    for each in params:
        each.hidden = each.name == "no_status"
    arguments = [click.Argument(["file"]), click.Argument(["cmd"], nargs=-1, type=click.UNPROCESSED, metavar=COMMAND)]
    return CommandWithProgram("record", callback=record, params=[*params, *arguments], help=record.__doc__)


command.add_command(_recording())
for _each in (*commands(trace), live_table.command(trace), full_screen.command(trace), node_agent.command(trace)):
    command.add_command(_each)


@command.command("doctor")
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig for access to the Kubernetes API.")
@click.option("-o", "--output", "form", type=click.Choice(render.FORMATS), default="text", help="Output format.")
@click.option("-v", "--verbose", is_flag=True, help="List each check, also those that passed.")
def doctor(form: str, kubeconfig: str | None, verbose: bool) -> int:
    """Check what works on this node, what does not, and what to do. Attaches nothing."""
    from tracer.commands import doctor as examination

    return examination.run(form, kubeconfig, verbose)


def _list_checks(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    """Prints the name of each check of `audit` and what it looks for, and ends."""
    if is_given:
        from tracer import audit as checks

        for name in checks.names():
            click.echo(name)
            click.echo(click.wrap_text(checks.description(name), 80, "    ", "    "))
        context.exit(0)


@command.command("audit", context_settings={"help_option_names": ["-h", "--help"]})
@with_kube
@click.option("-o", "--output", "form", type=click.Choice(render.FORMATS), default="text", help="Output format.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list_checks, help="List the checks.")
def audit(form: str, objects: str | None, kubeconfig: str | None, no_kube: bool) -> int:
    """Find conflicts on this node without traffic: from its rules, objects, sockets, routes and settings.

    Exit status 10 when at least one finding is certain, 11 when rules could not be read, else 0.
    """
    from tracer.commands import audit as checking
    from tracer.kube.owner_resolver import ObjectSource

    return checking.run(form, ObjectSource(objects or "", kubeconfig or "", no_kube))


@command.command("explain", cls=CommandWithProgram, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--from", "source", required=True, metavar="A[:PORT]", help="Source of the packet.")
@click.option("--to", "target", required=True, metavar="B:PORT", help="Destination as the sender sees it, before any NAT.")
@click.option("--proto", type=click.Choice(sorted(PROTOCOLS)), default="tcp", metavar="PROTO", help="Protocol; default tcp.")
@click.option("--iface", default="", metavar="NAME", help="Incoming interface; default: the one of the route to A.")
@with_kube
@click.option("--live", is_flag=True, help="Then trace such packets, sent by you or by CMD, and compare.")
@click.option("--duration", type=click.FloatRange(0), default=0, metavar="S", help="With --live: stop after S seconds.")
@click.option("--ready-file", default="", metavar="PATH", help="With --live: written when the probes are attached.")
@click.option("-o", "--output", "form", type=click.Choice(render.FORMATS), default="text", help="Output format.")
@click.option("-v", "--verbose", is_flag=True, help="Show every hook and table, not only decisions.")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar=COMMAND)
def explain(
    source: str, target: str, proto: str, iface: str, kubeconfig: str | None, objects: str | None, no_kube: bool,
    live: bool, duration: float, ready_file: str, form: str, verbose: bool, cmd: tuple[str, ...],
) -> int:  # fmt: skip
    """Predict, rule by rule, the path of a connection's first packet through this node, from its rules and routes.

    Sends nothing. A random choice in a rule gives several paths. What cannot be computed is reported, never guessed.
    With --live the exit status is 10 when a packet took a different path, 12 when no packet came.
    """
    from tracer.commands import explain as predicting
    from tracer.kube.owner_resolver import ObjectSource
    from tracer.node.namespaces import interface_index
    from tracer.predict.query import parse

    if (cmd or duration or ready_file) and not live:
        raise BadOption("--duration, --ready-file and a command need --live.")
    path_query = parse(source, target, proto, iface)
    if iface:
        interface_index(iface)  # raises BadOption if the interface does not exist
    objects_from = ObjectSource(objects or "", kubeconfig or "", no_kube)
    comparison = predicting.LiveComparison(duration, ready_file, cmd) if live else None
    return predicting.run(path_query, form, verbose, objects_from, comparison)


def _with_common_options(each: click.Command) -> None:
    """Adds the options --color and --debug, which each command has."""

    def choose(context: click.Context, option: click.Parameter, mode: str) -> None:
        color.use(color.ColorMode(mode))

    def enable(context: click.Context, option: click.Parameter, is_set: bool) -> None:
        if is_set:
            log.enable()

    modes = [mode.value for mode in color.ColorMode]
    text = f"{alternatives(modes)}, as NO_COLOR and FORCE_COLOR."
    settings: dict[str, Any] = {"expose_value": False, "is_eager": True}
    each.params.append(
        click.Option(
            ["--color"], type=click.Choice(modes), default="auto", callback=choose, metavar="WHEN", help=text, **settings
        )
    )
    text = "Log to stderr what the tracer itself does."
    each.params.append(click.Option(["--debug"], is_flag=True, callback=enable, help=text, **settings))


for _each in command.commands.values():
    _with_common_options(_each)
    completion.attach(_each)
completion.register()


def main(args: list[str] | None = None) -> None:
    """Runs the command line and exits."""
    run(command, args, "k8snet-trace")


def run(program: click.Command, args: list[str] | None, name: str) -> None:
    """Runs a program and exits. Each error is one sentence on stderr and has its own exit status.

    Args:
        program: Its command, or group of commands.
        args: The arguments; None = those of this process.
        name: What the user typed.
    """
    is_stdout_closed = standard_streams.complete()
    if is_stdout_closed and (args or sys.argv[1:])[:1] != ["record"]:  # `record` prints no results
        sys.exit(_print_error("Standard output is closed: no results can be printed.", OutputNotWritten.status))
    try:
        code = program.main(args, prog_name=name, standalone_mode=False)
    except click.ClickException as e:
        code = _print_error(e.format_message(), e.exit_code)
    except TraceError as e:
        _log.debug("the run ends", exc_info=e)
        code = _print_error(str(e), e.status)
    except click.Abort:
        code = 130
    except Exception as e:
        code = _end_of_output(e) if isinstance(e, OSError) and e.errno in NO_ROOM else _unexpected(e)
    sys.exit(code if isinstance(code, int) else 0)


def _end_of_output(error: OSError) -> int:
    """The status when the disk has no room for what is printed."""
    from tracer.render.base import hang_up

    hang_up(sys.stdout)
    return _print_error(f"The output stops here: {error.strerror}.", OutputNotWritten.status)


def _unexpected(error: Exception) -> int:
    """The status after a defect: one sentence, and with --debug the traceback."""
    _log.debug("an unexpected error ends the run", exc_info=error)
    again = "" if _log.isEnabledFor(logging.DEBUG) else " Run it again with --debug for its traceback, and report it."
    return _print_error(f"Unexpected error{place_of(error)}, {type(error).__name__}: {str(error)[:200]}.{again}", UNEXPECTED)


def _print_error(sentence: str, status: int) -> int:
    line = f"k8snet-trace: {escaped(' '.join(sentence.split()))}"
    click.echo(escaped_line(folded(line, terminal_columns(sys.stderr), 2)), err=True)
    return status
