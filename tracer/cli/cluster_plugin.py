# SPDX-License-Identifier: Apache-2.0
"""The program `kubectl-k8snet_trace`, which kubectl runs as `kubectl k8snet-trace`: the commands for several nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import click

from tracer import __version__
from tracer.cli import full_screen, live_table
from tracer.cli import main as node_program
from tracer.cli.command_line import COMMAND, CommandWithProgram, TraceByDefault
from tracer.cli.help import ShortHelp, write_commands
from tracer.cli.options import chosen_outputs, live_options

if TYPE_CHECKING:
    from tracer.commands.cluster import ClusterRequest

NOT_SHARED = frozenset({
    "help_all", "version", "objects", "kubeconfig", "read", "write", "ready_file", "no_status",
})  # fmt: skip
"""The options of `trace` that a run on several nodes does not have, or has with another meaning."""
REQUESTED = ("nodes", "clients", "context", "kubeconfig", "namespace", "image", "kubectl")
"""The options that choose nodes, and say how they are reached: the fields of a ClusterRequest."""
HELP_SETTINGS = {"help_option_names": ["-h", "--help"]}

EXAMPLES = """\b
Examples:
  kubectl k8snet-trace --service shop/cart
  kubectl k8snet-trace --service shop/cart --from pod/shop/web-1 --drops-only
  kubectl k8snet-trace --node worker-1 --node worker-2 --port 30285 -o json:packets.jsonl
  kubectl k8snet-trace top --by node
  kubectl k8snet-trace ui --service shop/cart

The nodes are traced by the DaemonSet's pods (deploy/), with your own rights: kubectl exec.
"""


class PluginCommand(CommandWithProgram):
    """A command of the plugin, with `kubectl k8snet-trace` in its usage line."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.find_root().command_path, " ".join((*self._words(), *self.collect_usage_pieces(ctx))))

    def _words(self) -> Sequence[str]:
        return (str(self.name),)


class PluginTraceCommand(PluginCommand):
    """The default command of the plugin. Its help lists the other commands."""

    def _words(self) -> Sequence[str]:
        return ()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        group = ctx.find_root().command
        if isinstance(group, click.Group):
            write_commands([each for each in group.commands.values() if each is not self], formatter)


def command() -> TraceByDefault:
    """Makes the group of commands."""
    group = TraceByDefault("kubectl k8snet-trace", context_settings=HELP_SETTINGS)
    for each in (_trace(), _top(), _ui()):
        group.add_command(each)
    return group


def _node_options() -> list[click.Parameter]:
    """The options that choose nodes, and say how they are reached."""
    return [
        click.Option(["--node", "nodes"], multiple=True, metavar="NAME", help="Trace this node; repeatable."),
        click.Option(
            ["--from", "clients"], multiple=True, metavar="NAME", help="Also trace the node of pod/NS/NAME, or node/NAME."
        ),
        click.Option(["--context"], default="", metavar="NAME", help="Context of the kubeconfig."),
        click.Option(["--kubeconfig"], default="", metavar="FILE", help="Kubeconfig for access to the Kubernetes API."),
        click.Option(
            ["--agent-namespace", "namespace"], default="kube-system", metavar="NS", help="Namespace of the DaemonSet."
        ),
        click.Option(
            ["--image"], default="", metavar="IMAGE", help="Debug pods with this image on nodes without the DaemonSet."
        ),
        click.Option(["-w", "--write"], metavar="DIR", help="Also record: a capture of each node in DIR."),
        click.Option(["--kubectl"], default="kubectl", hidden=True, metavar="PATH", help="The kubectl to run."),
    ]


def _shared(left_out: frozenset[str]) -> list[click.Parameter]:
    """Copies of the options of `trace` of one node, without some."""
    options = [p for p in node_program.trace.params if isinstance(p, click.Option)]
    return [copy(p) for p in options if p.name not in NOT_SHARED | left_out]


def _made(
    kind: type[PluginCommand], name: str, callback: Callable[..., int], params: Sequence[click.Parameter], text: str
) -> PluginCommand:
    """A command that refuses a program after `--`. kind: its class; text: its help."""
    program = click.Argument(["cmd"], nargs=-1, type=click.UNPROCESSED, metavar=COMMAND)
    return kind(name, callback=callback, params=[*params, program], help=text, context_settings=HELP_SETTINGS)


def _trace() -> PluginCommand:
    params = [*_node_options(), *_shared(frozenset())]
    made = _made(PluginTraceCommand, "trace", trace, params, trace.__doc__ or "")
    made.epilog = EXAMPLES
    made.params += [ShortHelp.option(), *click.version_option(__version__, prog_name="kubectl k8snet-trace")(_nothing()).params]
    return made


def _nothing() -> click.Command:
    return click.Command("")


def _top() -> PluginCommand:
    params = [*live_table.own_options(), *_node_options(), *_shared(live_table.NOT_SHARED)]
    return _made(PluginCommand, "top", top, params, live_table.HELP)


def _ui() -> PluginCommand:
    return _made(PluginCommand, "ui", ui, [*_node_options(), *_shared(full_screen.NOT_SHARED)], full_screen.HELP)


def _cluster_request(cmd: Sequence[str], options: dict[str, Any]) -> ClusterRequest:
    """Takes the options that choose nodes out of all options, and checks the others. Raises BadOption."""
    from tracer.commands import cluster as clusters

    clusters.require_no_program(cmd)
    request = clusters.ClusterRequest(**{name: options.pop(name) for name in REQUESTED})
    live_options(dict(options))
    return request


def trace(cmd: tuple[str, ...], **options: Any) -> int:
    """Trace a Service, a pod or a port on all nodes that can matter, and print one stream.

    Starts an agent on each node with kubectl, and ends them all when it ends. Without --node, the nodes are those of the
    selected objects' pods, and of --from; with a NodePort, or without any selected object, all nodes.
    """
    from tracer.commands import cluster as clusters

    context = click.get_current_context()
    context.params["read"] = ()
    outputs = chosen_outputs(context)
    for name in ("outputs", "oneline", "times"):
        options.pop(name)
    return clusters.run(_cluster_request(cmd, options), outputs, options)


def top(cmd: tuple[str, ...], **options: Any) -> int:
    """Shows a live table of the traffic of all nodes."""
    request = live_table.top_request(options)
    nodes = _cluster_request(cmd, options)
    from tracer.commands import cluster_top

    return cluster_top.trace(nodes, request, options)


def ui(cmd: tuple[str, ...], **options: Any) -> int:
    """Shows connections, packets and findings of all nodes on the whole terminal."""
    nodes, verbose = _cluster_request(cmd, options), options.pop("verbose")
    from tracer.commands import cluster_ui

    return cluster_ui.trace(nodes, verbose, options)


def main(args: list[str] | None = None) -> None:
    """Runs the plugin and exits, as `k8snet-trace` does."""
    node_program.run(command(), args, "kubectl k8snet-trace")
