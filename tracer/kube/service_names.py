# SPDX-License-Identifier: Apache-2.0
"""Names of Services for the completion of a command line: quickly, or none.

Read from a file of objects or from the API with the credentials of the user. No credential program is started, because it
may ask for a password.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from threading import Thread
from typing import Any

from tracer.kube import kubeconfig, objects
from tracer.kube.api_client import SERVICES, ApiClient

ANSWER_SECONDS = 1.0
"""Time for the API's answer, s."""
MOST_FILE = 16 << 20
"""Maximum size of a file of objects that is read for a completion, bytes."""
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
    if objects_file:
        bodies = _in_file(objects_file)
    else:
        namespace, slash, _ = typed.partition("/")
        bodies = _in_api(kubeconfig_file, namespace if slash and _LABEL.fullmatch(namespace) else "")
    return sorted({name for body in bodies for name in _names(body, ":" in typed)})


def _names(body: Any, with_ports: bool) -> list[str]:
    if not objects.is_readable("Service", body):
        return []
    namespace, name = objects.key(body)
    ports = [port.port_name for port in objects.service_ports(body)]
    if not (_LABEL.fullmatch(namespace) and _LABEL.fullmatch(name)):
        return []
    return [f"{namespace}/{name}:{port}" for port in ports if _LABEL.fullmatch(port)] if with_ports else [f"{namespace}/{name}"]


def _in_file(path: str) -> list[Any]:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_FILE:
        return []
    return [body for body in objects.read(path) if body.get("kind") == "Service"]


def _in_api(path: str, namespace: str) -> list[Any]:
    """The Services that the API lists; a thread waits for it, and is left behind if it takes too long."""
    found: list[Any] = []
    reader = Thread(target=_list, args=(path, namespace, found), daemon=True)
    reader.start()
    reader.join(ANSWER_SECONDS)
    return list(found)


def _list(path: str, namespace: str, found: list[Any]) -> None:
    try:
        access = kubeconfig.find(path or None)
        if access is None or (access.command and not access.token_file):
            return
        resource = replace(SERVICES, selector=f"metadata.namespace={namespace}") if namespace else SERVICES
        items, _ = ApiClient(access, ANSWER_SECONDS).list(resource)
        found += items
    except Exception:  # a completion reports no error
        return
