# SPDX-License-Identifier: Apache-2.0
"""The program `kubectl-k8snet_trace`, which kubectl runs as `kubectl k8snet-trace`. It takes the options of `trace`."""

from __future__ import annotations

from copy import copy
from typing import Any

import click

from tracer import __version__
from tracer.cli import main as node_program
from tracer.cli.command_line import COMMAND, CommandWithProgram
from tracer.cli.help import ShortHelp
from tracer.cli.options import chosen_outputs, live_options

NOT_SHARED = frozenset({
    "help_all", "version", "objects", "kubeconfig", "read", "write", "ready_file", "no_status",
})  # fmt: skip
"""The options of `trace` that a run on several nodes does not have, or has with another meaning."""

EXAMPLES = """\b
Examples:
  kubectl k8snet-trace --service shop/cart
  kubectl k8snet-trace --service shop/cart --from pod/shop/web-1 --drops-only
  kubectl k8snet-trace --node worker-1 --node worker-2 --port 30285 -o json:packets.jsonl

The nodes are traced by the DaemonSet's pods (deploy/), with your own rights: kubectl exec.
"""


def command() -> click.Command:
    """Makes the command."""
    own = [
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
    shared = [copy(p) for p in node_program.trace.params if p.name not in NOT_SHARED and isinstance(p, click.Option)]
    program = click.Argument(["cmd"], nargs=-1, type=click.UNPROCESSED, metavar=COMMAND)
    made = CommandWithProgram(
        "kubectl k8snet-trace",
        callback=cluster,
        params=[*own, *shared, program],
        help=cluster.__doc__,
        epilog=EXAMPLES,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.params += [ShortHelp.option(), *click.version_option(__version__, prog_name="kubectl k8snet-trace")(_nothing()).params]
    return made


def _nothing() -> click.Command:
    return click.Command("")


def cluster(cmd: tuple[str, ...], **options: Any) -> int:
    """Trace a Service, a pod or a port on all nodes that can matter, and print one stream.

    Starts an agent on each node with kubectl, and ends them all when it ends. Without --node, the nodes are those of the
    selected objects' pods, and of --from; with a NodePort, or without any selected object, all nodes.
    """
    from tracer.commands import cluster as clusters

    clusters.require_no_program(cmd)
    options["read"] = ()
    context = click.get_current_context()
    context.params["read"] = ()
    outputs = chosen_outputs(context)
    for name in ("outputs", "oneline", "times", "read"):
        options.pop(name)
    names = ("nodes", "clients", "context", "kubeconfig", "namespace", "image", "kubectl")
    request = clusters.ClusterRequest(**{name: options.pop(name) for name in names})
    live_options(options | {"write": options["write"]})
    return clusters.run(request, outputs, options)


def main(args: list[str] | None = None) -> None:
    """Runs the plugin and exits, as `k8snet-trace` does."""
    node_program.run(command(), args, "kubectl k8snet-trace")
