# SPDX-License-Identifier: Apache-2.0
"""The command line: `k8snet-trace [OPTIONS] [-- CMD]`, and the commands that go by a name."""

from __future__ import annotations

import sys
from copy import copy
from typing import Any

import click

from tracer import __version__
from tracer.cli import standard_streams
from tracer.cli.capture import commands
from tracer.cli.command_line import COMMAND, CommandWithProgram, TraceByDefault, TraceCommand
from tracer.cli.options import readable, recordable, with_recording
from tracer.errors import NO_ROOM, BadOption, OutputNotWritten, TraceError
from tracer.model.filter import PROTOCOLS
from tracer.util.visible import visible

EXAMPLES = """\b
Examples:
  k8snet-trace --port 30285                  everything that happens to that NodePort
  k8snet-trace --service shop/cart:http --drops-only
  k8snet-trace --port 30285 -- curl -m 2 http://192.168.56.10:30285/

\b
Other commands, each with its own --help:
  doctor, audit, explain                     what works, is wrong, would happen: without traffic
  record FILE                                traces without explaining; -r FILE explains
  stats, findings, diff, query, export       of what was recorded

Nothing on the node is changed: no rule, no sysctl, no counter.
"""


@click.group(cls=TraceByDefault, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="k8snet-trace")
def command() -> None:
    """What a Kubernetes node really does to a packet."""


def with_kube(function: Any) -> Any:
    """The options that tell where Kubernetes' objects come from."""
    function = click.option("--no-kube", is_flag=True, help="Ask no API: names from rules alone.")(function)
    function = click.option(
        "--objects", metavar="FILE", help="Instead: a file, of `kubectl get svc,endpointslices,pods,nodes -A -o json`."
    )(function)
    return click.option("--kubeconfig", metavar="FILE", help="How to reach the Kubernetes API.")(function)


@command.command("trace", cls=TraceCommand, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-p",
    "--port",
    "ports",
    type=int,
    multiple=True,
    metavar="PORT",
    help="Either end, before or after NAT; repeatable.",
)
@click.option("--host", "hosts", multiple=True, metavar="CIDR", help="Address or network, matched like --port.")
@click.option("--service", "services", multiple=True, metavar="NS/NAME[:PORT]", help="A Service, wherever it is asked for.")
@click.option("--pod", "pods", multiple=True, metavar="NS/NAME", help="A pod's own address.")
@click.option("--node-port", "node_ports", type=int, multiple=True, metavar="PORT", help="A NodePort on this node.")
@click.option("--host-port", "host_ports", type=int, multiple=True, metavar="PORT", help="A hostPort of this node's pods.")
@with_kube
@click.option("--proto", type=click.Choice(sorted(PROTOCOLS)), metavar="PROTO", help="tcp, udp, sctp, icmp or icmpv6.")
@click.option("-4", "family", flag_value=4, type=int, help="IPv4 only.")
@click.option("-6", "family", flag_value=6, type=int, help="IPv6 only.")
@click.option("--iface", metavar="NAME", help="Follow what passes this interface.")
@click.option("--netns", metavar="NAME", help="Follow what passes it: node, NAME, pid:N, PATH.")
@click.option("--drops-only", is_flag=True, help="Only what did not get where it should.")
@click.option("-n", "--count", type=click.IntRange(0), default=0, metavar="N", help="Stop after N packets.")
@click.option("--duration", type=click.FloatRange(0), default=0, metavar="S", help="Stop after S seconds.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
@click.option("-v", "--verbose", is_flag=True, help="Every hook and table, not only decisions.")
@click.option(
    "--attach",
    type=click.Choice(["auto", "kprobe"]),
    default="auto",
    help="auto takes fentry where it can, kprobe never.",
)
@click.option("--no-rules", is_flag=True, help="Verdicts only, not which rule decided: costs less.")
@click.option("--follow", is_flag=True, help="A timeline of each connection instead.")
@click.option("-w", "--write", metavar="FILE", help="Also record it all; see record --help.")
@click.option("-r", "--read", multiple=True, metavar="FILE", help="Explain captures: without root, without cluster.")
@with_recording
@click.option("--ready-file", metavar="PATH", help="Written with our pid once the probes are on.")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar=COMMAND)
def trace(cmd: tuple[str, ...], **options: Any) -> int:
    """Print each matching packet's way through this node: hooks, tables, NAT, sockets, drops.

    Runs until Ctrl-C, a limit, or the end of CMD. A packet matches when it, or its connection before or after NAT,
    does; it is then followed everywhere.
    """
    path, sizes = options.pop("read"), [options.pop(name) for name in ("ring", "rotate_size", "rotate_time")]
    target = options.pop("write")
    if path:
        readable(click.get_current_context())
        from tracer.commands import read as captures

        return captures.read(path, options)
    if (any(sizes) or options["snaplen"] or options["redact"]) and not target:
        raise BadOption("--ring, --rotate-size, --rotate-time, --snaplen and --redact say how -w FILE is written.")
    recordable(options)
    from tracer.commands import trace as tracing

    return tracing.trace(cmd, target=target, sizes=sizes, **options)


NOT_RECORDED = frozenset({"read", "form", "write", "count", "follow"})


def record(file: str, cmd: tuple[str, ...], ring: Any, rotate_size: Any, rotate_time: Any, **options: Any) -> int:
    """Record to FILE without explaining: a busy node's packets come faster than they can be printed.

    Later, on any machine and without root: k8snet-trace -r FILE. -w FILE with a trace takes the last options here, too.
    """
    from tracer.commands import trace as tracing

    recordable(options)
    sizes = (ring, rotate_size, rotate_time)
    return tracing.trace(cmd, form="text", count=0, target=file, sizes=sizes, record_only=True, **options)


def _recording() -> click.Command:
    """The command `record`: a trace's options, but for those of its output."""
    params = [copy(p) for p in trace.params if p.name not in NOT_RECORDED and isinstance(p, click.Option)]
    for each in params:
        each.hidden = False
    words = [click.Argument(["file"]), click.Argument(["cmd"], nargs=-1, type=click.UNPROCESSED, metavar=COMMAND)]
    return CommandWithProgram("record", callback=record, params=[*params, *words], help=record.__doc__)


command.add_command(_recording())
for _each in commands(trace):
    command.add_command(_each)


@command.command("doctor")
@click.option("--kubeconfig", metavar="FILE", help="How to reach the Kubernetes API.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
def doctor(form: str, kubeconfig: str | None) -> int:
    """Say what will and will not work on this node, and why, before anything is attached."""
    from tracer.commands import doctor as examination

    return examination.run(form, kubeconfig)


@command.command("audit", context_settings={"help_option_names": ["-h", "--help"]})
@with_kube
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
def audit(form: str, objects: str | None, kubeconfig: str | None, no_kube: bool) -> int:
    """Find conflicts on this node without traffic: from its rules, objects, sockets, routes and settings.

    Exit status 10 when something is wrong for certain, 11 when rules could not be read, else 0.
    """
    from tracer.commands import audit as checking
    from tracer.kube.owner_resolver import ObjectSource

    return checking.run(form, ObjectSource(objects or "", kubeconfig or "", no_kube))


@command.command("explain", cls=CommandWithProgram, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--from", "source", required=True, metavar="A[:PORT]", help="Who sends it.")
@click.option("--to", "target", required=True, metavar="B:PORT", help="Where to, as the sender writes it: before any NAT.")
@click.option("--proto", type=click.Choice(sorted(PROTOCOLS)), default="tcp", metavar="PROTO", help="tcp if not given.")
@click.option("--iface", default="", metavar="NAME", help="By which interface it comes in, if not by the route to A.")
@with_kube
@click.option("--live", is_flag=True, help="Then compare with what such packets really meet: you send them, or CMD does.")
@click.option("--duration", type=click.FloatRange(0), default=0, metavar="S", help="With --live: stop after S seconds.")
@click.option("--ready-file", default="", metavar="PATH", help="With --live: written once the probes are on.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
@click.option("-v", "--verbose", is_flag=True, help="Every hook and table, not only decisions.")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED, metavar=COMMAND)
def explain(
    source: str, target: str, proto: str, iface: str, kubeconfig: str | None, objects: str | None, no_kube: bool,
    live: bool, duration: float, ready_file: str, form: str, verbose: bool, cmd: tuple[str, ...],
) -> int:  # fmt: skip
    """Tell what would happen to a connection's first packet on this node: rule by rule, by its rules and routes.

    Nothing is sent. What a rule leaves to chance gives several ways; what cannot be computed is said, never guessed. With
    --live the exit status is 10 when a packet went another way, 12 when none came.
    """
    from tracer.commands import explain as predicting
    from tracer.kube.owner_resolver import ObjectSource
    from tracer.node.namespaces import interface_index
    from tracer.predict.query import parse

    if (cmd or duration or ready_file) and not live:
        raise BadOption("--duration, --ready-file and a command need --live.")
    question = parse(source, target, proto, iface)
    if iface:
        interface_index(iface)  # that there is one
    objects_from = ObjectSource(objects or "", kubeconfig or "", no_kube)
    watched = predicting.LiveComparison(duration, ready_file, cmd) if live else None
    return predicting.run(question, form, verbose, objects_from, watched)


def main(args: list[str] | None = None) -> None:
    """Runs the command line and exits. Whatever goes wrong is one sentence on stderr and a status of its own."""
    unheard = standard_streams.complete()
    if unheard and (args or sys.argv[1:])[:1] != ["record"]:  # `record` prints no results
        sys.exit(_say("Standard output is closed: nothing can be printed.", OutputNotWritten.status))
    try:
        code = command.main(args, prog_name="k8snet-trace", standalone_mode=False)
    except click.ClickException as e:
        code = _say(e.format_message(), e.exit_code)
    except TraceError as e:
        code = _say(str(e), e.status)
    except click.Abort:
        code = 130
    except OSError as e:
        if e.errno not in NO_ROOM:
            raise
        from tracer.render.base import hang_up

        hang_up(sys.stdout)
        code = _say(f"The output ends here: {e.strerror}.", OutputNotWritten.status)
    sys.exit(code if isinstance(code, int) else 0)


def _say(sentence: str, status: int) -> int:
    click.echo(f"k8snet-trace: {visible(' '.join(sentence.split()))}", err=True)
    return status
