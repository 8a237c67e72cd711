# SPDX-License-Identifier: Apache-2.0
"""An API server for `kubectl`: the double of api_server.py, extended by the requests that only `kubectl` makes:
the list of resources, the objects of one namespace, Endpoints beside slices, and a change of one object.

kubectl's own decoding and printing is under test; nothing of it is imitated here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.api_handler import Handler
from tests.support.api_objects import CORE, PATHS, V1BETA1, Object, key
from tests.support.api_server import ApiServer

SHORT = {"pods": "po", "services": "svc", "nodes": "no", "endpoints": "ep", "events": "ev"}
"""Resources of the core group, and their short names in kubectl."""
SLICES = "endpointslices"


class KubectlHandler(Handler):
    """Answers paths with a namespace, which the double's other clients never request, with a selection of the collection."""

    api: KubectlApi

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        found = self._discovery(url.path)
        if found is not None:
            return self._answer(200, found)
        self.path = url.path
        collection, namespace, name = self._split()
        if name:
            return self._one(collection, name, namespace)
        terms = [url.query, f"fieldSelector=metadata.namespace={namespace}" if namespace else ""]
        self.path = "?".join(filter(None, (collection, "&".join(filter(None, terms)))))
        return super().do_GET()

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.path = urlsplit(self.path).path
        collection, namespace, name = self._split()
        _merge(self.api.stored[PATHS[collection], namespace, name], body)
        return self._one(collection, name, namespace)

    def _split(self) -> tuple[str, str, str]:
        """The collection's path, the namespace and the name; "" where one is absent."""
        group, _, rest = self.path.partition("/namespaces/")
        namespace, _, rest = rest.partition("/") if rest else ("", "", "")
        if rest:
            resource, _, name = rest.partition("/")
            return f"{group}/{resource}", namespace, name
        collection, _, name = self.path.rpartition("/")
        return (collection, "", name) if collection in PATHS else (self.path, "", "")

    def _selected(self, path: str, query: dict[str, str]) -> list[Object]:
        if PATHS[path] == "EndpointSlice" and path.startswith(V1BETA1):
            # For this version `kubectl` prints the topology, which has the node's name.
            return [_without_node_names(each) for each in super()._selected(path, query)]
        return super()._selected(path, query)

    def _discovery(self, path: str) -> Object | None:
        slices, minor = self.api.slices, "20" if self.api.slices == "v1beta1" else "32"
        group = {"groupVersion": f"discovery.k8s.io/{slices}", "version": slices}
        apps = {"groupVersion": "apps/v1", "version": "v1"}
        networking = {"groupVersion": "networking.k8s.io/v1", "version": "v1"}
        verbs = ["get", "list", "patch", "watch"]
        found: dict[str, Object] = {
            "/version": {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"},
            "/openapi/v3": {"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}},
            "/openapi/v3/api/v1": {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1"}, "paths": {
                "/api/v1/namespaces/{namespace}/services/{name}": {"patch": {
                    "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                    "x-kubernetes-group-version-kind": {"group": "", "version": "v1", "kind": "Service"}}}}},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": "discovery.k8s.io", "versions": [group], "preferredVersion": group},
                {"name": "apps", "versions": [apps], "preferredVersion": apps},
                {"name": "networking.k8s.io", "versions": [networking], "preferredVersion": networking}]},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [
                {"name": n, "singularName": n.rstrip("s"), "namespaced": n != "nodes", "kind": PATHS[f"{CORE}/{n}"],
                 "verbs": verbs, "shortNames": [short]} for n, short in SHORT.items()]},
            f"/apis/{group['groupVersion']}": {
                "kind": "APIResourceList", "groupVersion": group["groupVersion"], "resources": [
                    {"name": SLICES, "singularName": "endpointslice", "namespaced": True, "kind": "EndpointSlice",
                     "verbs": verbs}]},
            "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [
                {"name": "daemonsets", "singularName": "daemonset", "namespaced": True, "kind": "DaemonSet", "verbs": verbs,
                 "shortNames": ["ds"]}]},
            "/apis/networking.k8s.io/v1": {"kind": "APIResourceList", "groupVersion": "networking.k8s.io/v1", "resources": [
                {"name": "networkpolicies", "singularName": "networkpolicy", "namespaced": True, "kind": "NetworkPolicy",
                 "verbs": verbs, "shortNames": ["netpol"]}]},
        }  # fmt: skip
        return found.get(path)


class KubectlApi(ApiServer):
    """Listens at once. slices: version of discovery.k8s.io that is served, "v1beta1" as by Kubernetes 1.20, or "v1"."""

    handler = KubectlHandler

    def __init__(self, slices: str = "v1") -> None:
        self.slices = slices
        super().__init__(page=1000)

    def replace(self, items: Iterable[Object]) -> None:
        """Replaces all objects. Each slice gets Endpoints beside it, as the controller makes them."""
        self.stored.clear()
        for number, each in enumerate(items):
            each = json.loads(json.dumps(each))
            each["metadata"].setdefault("uid", f"uid-{number}")
            self.put(each)
            if each["kind"] == "EndpointSlice":
                beside = _endpoints(each)
                stored = self.stored.get(key(beside), {"subsets": []})
                self.put({**beside, "subsets": stored["subsets"] + beside["subsets"]})

    def share(self, other: KubectlApi) -> None:
        """Serves the objects of another server: both see each change."""
        self.stored = other.stored

    def as_objects(self) -> list[Object]:
        """The objects that the tracer's store loads."""
        return [each for each in self.objects if each["kind"] != "Endpoints"]

    def kubeconfig(self, folder: Path, token: str = "") -> str:
        """The path of a kubeconfig for this server. It has its own folder: servers of both versions run at once."""
        own = folder / self.slices
        own.mkdir()
        return super().kubeconfig(own, token)


def _endpoints(of: Object) -> Object:
    """The Endpoints that the endpoints controller makes for a slice; every version of Kubernetes has them."""
    subset: Object = {"addresses": [], "notReadyAddresses": [], "ports": of["ports"]}
    for end in of["endpoints"]:
        state = "addresses" if end["conditions"].get("ready", True) else "notReadyAddresses"
        on = {"nodeName": end["nodeName"]} if "nodeName" in end else {}
        subset[state] += [{"ip": a, **on, "targetRef": end.get("targetRef")} for a in end["addresses"]]
    meta = {"namespace": of["metadata"]["namespace"], "name": of["metadata"]["labels"]["kubernetes.io/service-name"]}
    return {"kind": "Endpoints", "metadata": meta, "subsets": [{k: v for k, v in subset.items() if v}]}


def _without_node_names(of: Object) -> Object:
    ends = [{k: v for k, v in end.items() if k != "nodeName"} for end in of["endpoints"]]
    return {**of, "endpoints": ends}


def _merge(into: Object, patch: Object) -> None:
    """A strategic merge, as far as `kubectl edit` of a Service needs it: the port number is the key of a port."""
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        elif name == "ports":
            for each in value:
                same = [p for p in into[name] if p["port"] == each.get("port")]
                _merge(same[0], each)
        elif not name.startswith("$"):
            into[name] = value
