# SPDX-License-Identifier: Apache-2.0
"""Whether the Kubernetes API answers here, and what it lets this account see: facts for `k8snet-trace doctor`.

A run asks the same, but never waits for it; the doctor does, some seconds at most for each collection.
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

_ALONE = "names come from rules alone"


def gather(path: str | None = None, find: Callable[[str | None], ApiAccess | None] = kubeconfig.find) -> Iterator[CheckResult]:
    """path: of --kubeconfig, None for the usual places. The status is 1 where a run with these objects loses some names."""
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
    """What it says: one fact for the API, one for which node this is."""
    where = f"{access.scheme}://{access.host}:{access.port}" + (f" by {access.source}" if access.source else "")
    where += ", its certificate not checked (insecure-skip-tls-verify)" if access.unchecked else ""
    asker, store, counted, lost = ApiClient(access, seconds), ObjectStore(), [], []
    for resources in ((api_client.SERVICES,), ENDPOINT_KINDS, (api_client.NODES,)):
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
            "this node", "degraded", "cannot be told from the API's nodes: set NODE_NAME to have its pods named", 1
        )


def _list(asker: ApiClient, resources: tuple[ApiResource, ...]) -> tuple[ApiResource, list[dict[str, Any]]]:
    """The first collection that this cluster has, and what is in it. Raises as Client.list does."""
    for resource in resources[:-1]:
        try:
            return resource, asker.list(resource)[0]
        except RequestRefused as e:
            if e.status != 404:
                raise
    return resources[-1], asker.list(resources[-1])[0]


def _refusal(e: RequestRefused) -> str:
    words = {401: "the account is not known, or its token has expired", 403: "the account may not list them"}
    return f"{words.get(e.status, 'refused')} ({e.status})"
