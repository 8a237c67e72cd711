# SPDX-License-Identifier: Apache-2.0
"""Names of Services, pods, workloads and namespaces for the completion of a command line: quickly, or none.

Read from a file of objects or from the API with the credentials of the user. No credential program is started, because it
may ask for a password.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from typing import Any

from tracer.kube import kubeconfig, objects
from tracer.kube.api_client import SERVICES, ApiClient, ApiResource, RequestRefused
from tracer.kube.pod_selectors import KINDS, workloads
from tracer.model.kube import Pod

ANSWER_SECONDS = 1.0
"""Time for the API's answer, s."""
MOST_FILE = 16 << 20
"""Maximum size of a file of objects that is read for a completion, bytes."""
PODS = ApiResource("Pod", "/api/v1/pods")
_SHORT = {"Deployment": "deploy", "StatefulSet": "sts", "DaemonSet": "ds", "ReplicaSet": "rs", "Job": "job"}
"""kubectl's short names of the kinds of workloads."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""A name of the API. Whatever else a server or a file contains is not offered."""


def service_names(typed: str, objects_file: str = "", kubeconfig_file: str = "") -> list[str]:
    """Names that `--service` takes: NAMESPACE/NAME, and NAMESPACE/NAME:PORT once a colon was typed.

    Args:
        typed: The beginning of the name. With a namespace in it, only that one is asked for.
        objects_file: The file of `--objects`; "" = the API.
        kubeconfig_file: The file of `--kubeconfig`; "" = the usual ones.

    Returns:
        Sorted names; [] if they cannot be read in time.
    """
    bodies = _bodies((SERVICES,), typed, objects_file, kubeconfig_file)
    return sorted({name for body in bodies for name in _service(body, ":" in typed)})


def pod_names(typed: str, objects_file: str = "", kubeconfig_file: str = "") -> list[str]:
    """Names that `--pod` takes: NAMESPACE/NAME. Arguments and result are those of service_names."""
    return sorted({f"{pod.namespace}/{pod.name}" for pod in _pods(typed, objects_file, kubeconfig_file)})


def workload_names(typed: str, objects_file: str = "", kubeconfig_file: str = "") -> list[str]:
    """Names that `--workload` takes: NAMESPACE/deploy/NAME and the like. Arguments and result are those of service_names."""
    pods = _pods(typed, objects_file, kubeconfig_file)
    return sorted({f"{p.namespace}/{_SHORT[kind]}/{name}" for p in pods for kind, name in workloads(p) if kind in _SHORT})


def namespace_names(typed: str, objects_file: str = "", kubeconfig_file: str = "") -> list[str]:
    """Namespaces that have Services or pods. Arguments and result are those of service_names."""
    bodies = _bodies((SERVICES, PODS), "", objects_file, kubeconfig_file)
    found = {objects.key(body)[0] for body in bodies if objects.has_name(body)}
    return sorted(name for name in found if _LABEL.fullmatch(name))


def end_names(typed: str, objects_file: str = "", kubeconfig_file: str = "") -> list[str]:
    """Names that `--src` and `--dst` take, once their kind was typed: pod/NAMESPACE/NAME. The rest is that of service_names."""
    kind, slash, rest = typed.partition("/")
    source = _ENDS.get(kind) if slash else None
    if source:
        return [f"{kind}/{name}" for name in source(rest, objects_file, kubeconfig_file)]
    if not slash or kind not in KINDS:
        return []
    split = (name.split("/") for name in workload_names(rest, objects_file, kubeconfig_file))
    return [f"{kind}/{namespace}/{name}" for namespace, of, name in split if KINDS[of] == KINDS[kind]]


_ENDS = {
    "svc": service_names, "service": service_names, "pod": pod_names, "po": pod_names,
    "ns": namespace_names, "namespace": namespace_names,
}  # fmt: skip


def _service(body: Any, with_ports: bool) -> list[str]:
    if not objects.is_readable("Service", body):
        return []
    namespace, name = objects.key(body)
    ports = [port.port_name for port in objects.service_ports(body)]
    if not (_LABEL.fullmatch(namespace) and _LABEL.fullmatch(name)):
        return []
    return [f"{namespace}/{name}:{port}" for port in ports if _LABEL.fullmatch(port)] if with_ports else [f"{namespace}/{name}"]


def _pods(typed: str, objects_file: str, kubeconfig_file: str) -> Iterator[Pod]:
    """Yields the pods that run, with names of the API."""
    for body in _bodies((PODS,), typed, objects_file, kubeconfig_file):
        pod = objects.pod(body) if objects.is_readable("Pod", body) else None
        if pod and all(map(_LABEL.fullmatch, (pod.namespace, pod.name, *(name for _, name in pod.controllers)))):
            yield pod


def _bodies(resources: tuple[ApiResource, ...], typed: str, objects_file: str, kubeconfig_file: str) -> list[Any]:
    """Objects of these collections: from the file, or from the API, of the namespace in what was typed."""
    if objects_file:
        return _in_file(objects_file, {resource.kind for resource in resources})
    namespace, slash, _ = typed.partition("/")
    return _in_api(resources, kubeconfig_file, namespace if slash and _LABEL.fullmatch(namespace) else "")


def _in_file(path: str, kinds: set[str]) -> list[Any]:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_FILE:
        return []
    return [body for body in objects.read(path) if body.get("kind") in kinds]


def _in_api(resources: tuple[ApiResource, ...], path: str, namespace: str) -> list[Any]:
    """The objects that the API lists; a thread waits for them, and is left behind if it takes too long."""
    found: list[Any] = []
    reader = Thread(target=_list, args=(resources, path, namespace, found), daemon=True)
    reader.start()
    reader.join(ANSWER_SECONDS)
    return list(found)


def _list(resources: tuple[ApiResource, ...], path: str, namespace: str, found: list[Any]) -> None:
    with suppress(Exception):  # a completion reports no error
        access = kubeconfig.find(path or None)
        if access is None or (access.command and not access.token_file):
            return
        for resource in resources:
            with suppress(RequestRefused):
                asked = replace(resource, selector=f"metadata.namespace={namespace}") if namespace else resource
                found += ApiClient(access, ANSWER_SECONDS).list(asked)[0]
