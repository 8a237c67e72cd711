# SPDX-License-Identifier: Apache-2.0
"""The kubectl commands that start an agent on a node. kubectl has the user's credentials; it is run without a shell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONTAINER = "k8snet-trace"
"""Name of the container of the DaemonSet, and of the program in it."""


@dataclass(frozen=True)
class Kubectl:
    """The program and the options that choose the cluster.

    Attributes:
        program: Name or path of kubectl.
        context: Context of the kubeconfig; "" = the current one.
        kubeconfig: The kubeconfig; "" = kubectl's own choice.
    """

    program: str = "kubectl"
    context: str = ""
    kubeconfig: str = ""

    def exec(self, namespace: str, pod: str, arguments: Sequence[str]) -> tuple[str, ...]:
        """The command that starts an agent in a pod of the DaemonSet. arguments: those of the agent."""
        return (
            *self._base(), "exec", "-i", "-n", namespace, pod, "-c", CONTAINER, "--",
            CONTAINER, "agent", "--stdio", *arguments,
        )  # fmt: skip

    def debug(self, node: str, image: str, arguments: Sequence[str]) -> tuple[str, ...]:
        """The command that starts an agent in a debug pod on a node. arguments: those of the agent."""
        return (
            *self._base(), "debug", f"node/{node}", "-i", "-q", f"--image={image}", "--profile=sysadmin", "--",
            "env", f"NODE_NAME={node}", "K8SNET_TRACE_CACHE=/host/var/cache/k8snet-trace",
            CONTAINER, "agent", "--stdio", *arguments,
        )  # fmt: skip

    def _base(self) -> tuple[str, ...]:
        chosen = [f"--context={self.context}"] if self.context else []
        chosen += [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        return (self.program, *chosen)
