# SPDX-License-Identifier: Apache-2.0
"""Reads what a run on several nodes needs of the API: Services, their endpoints, pods and nodes, each once."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracer.errors import NoObjects
from tracer.kube import kubeconfig, objects
from tracer.kube.api_client import NODES, SERVICES, SLICES, ApiClient, ApiResource, RequestRefused
from tracer.kube.catalog import ClusterView

PODS = ApiResource("Pod", "/api/v1/pods")
AGENTS = ApiResource("Pod", "/api/v1/pods", labels="app.kubernetes.io/name=k8snet-trace")
"""The pods of deploy/daemonset.yaml."""
LABEL = ("app.kubernetes.io/name", "k8snet-trace")


class ClusterObjects:
    """The objects of one cluster.

    Args:
        kubeconfig_file: A kubeconfig; "" = the usual places.
        context: Its context; "" = the current one.

    Raises:
        NoObjects: By each method, when the API gives no objects.
    """

    def __init__(self, kubeconfig_file: str = "", context: str = "") -> None:
        access = kubeconfig.find(kubeconfig_file or None, context=context)
        if access is None:
            raise NoObjects("No kubeconfig was found: give --kubeconfig FILE.")
        self._access = access
        self.view = ClusterView()

    def read(self, resources: Sequence[ApiResource]) -> ClusterView:
        """Reads collections into the view."""
        for resource in resources:
            self.view.store.load([{"kind": resource.kind, **body} for body in self._list(resource)])
        return self.view

    def agents(self, namespace: str) -> dict[str, str]:
        """The DaemonSet's running pods in a namespace: node -> pod."""
        found: dict[str, str] = {}
        for body in self._list(AGENTS):
            if not objects.is_readable("Pod", body):
                continue
            pod = objects.pod(body)
            if pod and pod.namespace == namespace and pod.node and LABEL in pod.labels and _is_running(body):
                found[pod.node] = pod.name
        return found

    def slices(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """The EndpointSlices of one Service, as the API has them now. May be called from another thread."""
        found = self._list(replace(SLICES, labels=f"kubernetes.io/service-name={name}"))
        return [body for body in found if objects.is_readable("EndpointSlice", body) and objects.key(body)[0] == namespace]

    def _list(self, resource: ApiResource) -> list[dict[str, Any]]:
        try:
            items, _ = ApiClient(self._access).list(resource)
        except RequestRefused as e:
            raise NoObjects(f"The Kubernetes API refuses to list {resource.kind}s: {e}.") from e
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise NoObjects(f"The Kubernetes API at {self._access.host} gives no {resource.kind}s: {e}.") from e
        return [body for body in items if isinstance(body, dict)]


def _is_running(body: dict[str, Any]) -> bool:
    state = body.get("status")
    return isinstance(state, dict) and state.get("phase") == "Running"


NAMED = (SERVICES, SLICES, PODS)
"""The collections that names of objects are looked up in."""
ALL_NODES = (NODES,)
