# SPDX-License-Identifier: Apache-2.0
"""Checks of `doctor`: whether the Kubernetes API answers, and which objects this account may list.

A run sends the same requests without waiting for the answers. The doctor waits some seconds for each collection.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from typing import Any

from tracer.errors import NoObjects
from tracer.kube import api_client, kubeconfig, node_name
from tracer.kube.api_client import ApiClient, ApiResource, RequestRefused
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube.store import ObjectStore
from tracer.kube.watch import ENDPOINT_KINDS, WORDS
from tracer.model.check import CheckResult
from tracer.node import addresses

SECONDS = 5.0
SUBJECT = "Kubernetes API"

_ALONE = "names come from rules only"


def gather(path: str | None = None, find: Callable[[str | None], ApiAccess | None] = kubeconfig.find) -> Iterator[CheckResult]:
    """Yields the results.

    The status of a result is 1 if a run would lack some names.

    Args:
        path: The file of --kubeconfig; None = the usual places.
        find: Finds the API server; replaced by tests.
    """
    try:
        access = find(path)
    except NoObjects as e:
        yield CheckResult(SUBJECT, "degraded", f"{str(e).rstrip('.')}; {_ALONE}", 1)
        return
    if access is None:
        yield CheckResult(SUBJECT, "degraded", f"no kubeconfig and no pod's account here: {_ALONE}")
        return
    yield from ask(access)


def ask(access: ApiAccess, seconds: float = SECONDS) -> Iterator[CheckResult]:
    """Sends the requests. Yields one result for the API and one for this node's name."""
    where = f"{access.scheme}://{access.host}:{access.port}" + (f" by {access.source}" if access.source else "")
    where += ", its certificate not checked (insecure-skip-tls-verify)" if access.unchecked else ""
    asker, store, counted, lost = ApiClient(access, seconds), ObjectStore(), [], []
    for resources in ((api_client.SERVICES,), ENDPOINT_KINDS, (api_client.NODES,), (api_client.POLICIES,)):
        try:
            resource, items = _list(asker, resources)
        except RequestRefused as e:
            lost.append(f"{WORDS[resources[0].kind]}: {_refusal(e)}")
            continue
        except (OSError, http.client.HTTPException, ValueError) as e:
            why = (e.strerror if isinstance(e, OSError) and e.strerror else str(e)) or type(e).__name__
            yield CheckResult(SUBJECT, "degraded", f"{where} does not answer ({why}): {_ALONE}", 1)
            return
        store.replace(resource.kind, items)
        counted.append(f"{len(items)} {WORDS[resource.kind]}")
    name = node_name.name_of_node(store, addresses.local_addresses())
    if name:
        try:
            items = asker.list(api_client.pods_of(name))[0]
            counted.append(f"{len(items)} pods of {name}")
        except (RequestRefused, OSError, http.client.HTTPException, ValueError) as e:
            lost.append(f"pods: {_refusal(e) if isinstance(e, RequestRefused) else e}")
    text = "; ".join([f"{where}: {', '.join(counted) or 'nothing'}", *lost])
    yield CheckResult(SUBJECT, "degraded" if lost else "ok", text, int(bool(lost)))
    if not name:
        yield CheckResult(
            "this node", "degraded", "not found among the API's nodes: set NODE_NAME to get the names of its pods", 1
        )


def _list(asker: ApiClient, resources: tuple[ApiResource, ...]) -> tuple[ApiResource, list[dict[str, Any]]]:
    """Returns the first collection that this cluster has, and its objects. Raises the errors of ApiClient.list."""
    for resource in resources[:-1]:
        try:
            return resource, asker.list(resource)[0]
        except RequestRefused as e:
            if e.status != 404:
                raise
    return resources[-1], asker.list(resources[-1])[0]


def _refusal(e: RequestRefused) -> str:
    texts = {401: "the account is unknown, or its token has expired", 403: "the account is not allowed to list them"}
    return f"{texts.get(e.status, 'refused')} ({e.status})"
