# SPDX-License-Identifier: Apache-2.0
"""Keeps a store up to date with the API, in separate threads. Tracing never waits for them, and continues if they fail.

Each collection has one thread: it lists, then watches from there. It starts a new watch when the server ends one, and lists
again after 410 Gone. A problem is noted once, in one sentence, and so is its end.
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tracer.kube import api_client, objects
from tracer.kube.api_client import ApiClient, ApiResource, RequestRefused, ResponseTooLarge
from tracer.kube.kubeconfig import ApiAccess
from tracer.kube.store import ObjectStore
from tracer.util.bounded_queue import BoundedQueue
from tracer.util.worker import Worker, user_warnings

_log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between attempts, doubled each time."""
ATTEMPTS = 2
"""Number of failed attempts in a row to list a collection, after which nothing waits for it any longer."""

MOST_NOTES = 64
"""Maximum number of notes that wait to be read. An API that fails and answers in turn makes two each time."""

ENDPOINT_KINDS = (api_client.SLICES, api_client.SLICES_BETA, api_client.ENDPOINTS)
"""The collections of endpoints, in order of preference. Older clusters have only the later ones."""

WORDS = {
    "Service": "services", "EndpointSlice": "endpointslices", "Endpoints": "endpoints", "Pod": "pods", "Node": "nodes",
    "NetworkPolicy": "networkpolicies",
}  # fmt: skip

NameOfNode = Callable[[ObjectStore], str]


class ObjectWatch:
    """Watches Services, their endpoints, Nodes, NetworkPolicies and this node's Pods."""

    def __init__(self, access: ApiAccess, store: ObjectStore, name_of_node: NameOfNode, pause: float = FIRST_PAUSE) -> None:
        self._access, self._store, self._name, self._pause = access, store, name_of_node, pause
        self._over = threading.Event()
        self._clients: list[ApiClient] = []
        self._threads: list[Worker] = []
        self._pending_notes: BoundedQueue[str] = BoundedQueue(MOST_NOTES, "notes about the Kubernetes API")
        self._trouble: dict[str, str] = {}
        self._missing = {"Service", "EndpointSlice", "Node", "Pod", "NetworkPolicy"}
        self._complete, self._lock = threading.Event(), threading.Lock()
        self._decided, self._failed = threading.Event(), Counter[str]()
        self._left_out, self._odd_kinds = 0, set[str]()

    def start(self) -> None:
        """Starts the threads; returns at once."""
        for resources in ((api_client.SERVICES,), ENDPOINT_KINDS, (api_client.NODES,), (api_client.POLICIES,)):
            self._thread(resources)

    def close(self) -> None:
        """Ends all threads. A thread that waits for an answer without end is left behind."""
        self._over.set()
        for one in list(self._clients):
            one.interrupt()
        for thread in self._threads:
            thread.join(0.5)

    def wait(self, seconds: float) -> bool:
        """Waits until all collections have been listed or refused; returns whether they have.

        Returns earlier if a collection failed repeatedly. Then `troubled` is the reason.
        """
        self._decided.wait(seconds)
        return self._complete.is_set()

    def notes(self) -> list[str]:
        """Returns the notes for the user since the last call."""
        return self._pending_notes.read()

    @property
    def troubled(self) -> str:
        """The current problem; "" = none."""
        return next(iter(self._trouble.values()), "")

    def _thread(self, resources: Sequence[ApiResource]) -> None:
        one = ApiClient(self._access)
        self._clients.append(one)
        follower = _ResourceWatch(self, one, list(resources))
        self._threads.append(Worker(f"kube-{resources[0].kind}", follower.work).start())

    def _round(self, one: ApiClient, resource: ApiResource, kind: str, version: str) -> Iterator[str]:
        """Lists a collection if no version is known, then watches it. Yields the version to continue from after each step."""
        if not version:
            items, version = one.list(resource)
            self._store.replace(resource.kind, items)
            self._odd(kind, resource)
            yield version
            self._listed(kind)
        events = one.watch(resource, version)
        self._well(kind)
        for what, body in events:
            if not objects.has_name(body):
                self._store.unreadable += 1
                self._odd(kind, resource)
                continue
            version = str((body.get("metadata") or {}).get("resourceVersion", version))
            if what in ("ADDED", "MODIFIED"):
                self._store.apply(resource.kind, body)
            elif what == "DELETED":
                self._store.delete(resource.kind, body)
            self._odd(kind, resource)
            yield version

    def _odd(self, kind: str, resource: ApiResource) -> None:
        """Notes once per collection that invalid objects in it were ignored."""
        with self._lock:
            if self._store.unreadable > self._left_out and kind not in self._odd_kinds:
                self._odd_kinds.add(kind)
                self._pending_notes.append(
                    f"The Kubernetes API sent invalid {WORDS.get(resource.kind, kind)}: they are ignored and unnamed."
                )
            self._left_out = self._store.unreadable

    def _listed(self, kind: str) -> None:
        self._well(kind)
        self._have(kind)

    def _have(self, kind: str) -> None:
        """A collection is complete, or refused. The pods are requested when this node's name is known."""
        with self._lock:
            first = kind in self._missing
            self._missing.discard(kind)
            if kind == "Node" and first:
                self._store.node = self._store.node or self._name(self._store)
                if self._store.node:
                    self._thread((api_client.pods_of(self._store.node),))
                else:
                    self._pending_notes.append(
                        "This node was not found in the Kubernetes API: set NODE_NAME to get the names of its pods."
                    )
                    self._missing.discard("Pod")
            if not self._missing:
                self._complete.set()
                self._decided.set()

    def _well(self, kind: str) -> None:
        with self._lock:
            del self._failed[kind]
            if self._trouble.pop(kind, None) and not self._trouble:
                self._pending_notes.append("The Kubernetes API answers again.")

    def _refused(self, kind: str, e: RequestRefused) -> None:
        words = WORDS[kind]
        if e.status == 401:
            self._access.renew()
            self._say(kind, "The Kubernetes API does not know this account (401: expired token?): names may be old or missing.")
        elif e.status == 403:
            self._say(kind, f"The Kubernetes API does not let this account list {words} (403): {words} may go unnamed.")
            self._have(kind)
        else:
            self._say(kind, f"The Kubernetes API answered {e.status} when asked for {words}: names may be old or missing.")

    def _away(self, kind: str, e: Exception) -> None:
        if self._over.is_set():
            return
        why = (e.strerror if isinstance(e, OSError) and e.strerror else str(e)) or type(e).__name__
        where, what = f"{self._access.host}:{self._access.port}", "does not answer"
        if isinstance(e, ResponseTooLarge):
            what = "sends more than this program takes"
        self._say(kind, f"The Kubernetes API at {where} {what} ({why}): names may be old or missing.")

    def _not_understood(self, kind: str, e: Exception) -> None:
        """Notes an answer that is JSON but not in the API's format."""
        where = f"{self._access.host}:{self._access.port}"
        self._say(
            kind,
            f"The Kubernetes API at {where} sent what cannot be understood ({type(e).__name__}): names may be old or missing.",
        )

    def _say(self, kind: str, sentence: str) -> None:
        """Notes a problem, unless it is already known for this or another collection."""
        with self._lock:
            known = sentence in self._trouble.values()
            # One outage causes different errors (refused, reset, timed out): only the first one is noted.
            same = "does not answer" in sentence and any("does not answer" in t for t in self._trouble.values())
            self._trouble[kind] = sentence
            self._failed[kind] += 1
            _log.debug("%s: failure %d: %s", kind, self._failed[kind], sentence)
            if self._failed[kind] >= ATTEMPTS and kind in self._missing:
                self._decided.set()
            if not (known or same):
                self._pending_notes.append(sentence)


class _ResourceWatch:
    """The work of one collection's thread; a unit is one list or watch. resources: in order of preference."""

    def __init__(self, watch: ObjectWatch, one: ApiClient, resources: list[ApiResource]) -> None:
        self._watch, self._one, self._resources = watch, one, resources
        self._kind, self._version, self._pause = resources[0].kind, "", watch._pause

    def work(self) -> bool:
        watch, kind, began = self._watch, self._kind, time.monotonic()
        try:
            for version in watch._round(self._one, self._resources[0], kind, self._version):
                self._version = version
        except RequestRefused as e:
            gone, self._version = e.status == 410 and bool(self._version), ""
            if e.status == 404 and len(self._resources) > 1:
                self._resources.pop(0)
                return not watch._over.is_set()
            if not gone:
                watch._refused(kind, e)
        except (OSError, http.client.HTTPException, ValueError) as e:
            watch._away(kind, e)
        except Exception as e:
            self._version = ""
            user_warnings.add_failure(f"following the {WORDS[kind]} of the Kubernetes API", e)
            watch._not_understood(kind, e)
        # Do not loop without a pause if the server ends each watch at once.
        long = time.monotonic() - began > LONGEST_PAUSE
        self._pause = watch._pause if long else min(2 * self._pause, LONGEST_PAUSE)
        watch._over.wait(self._pause if watch._trouble.get(kind) else watch._pause)
        return not watch._over.is_set()
