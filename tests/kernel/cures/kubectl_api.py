# SPDX-License-Identifier: Apache-2.0
"""An API server for `kubectl`: beside lists it asks which resources there are, for one object by its name, for objects with a
label, and for a change of one, which the double in tests/support/api_server.py does not answer.

kubectl's own decoding and printing is what the tests are for; nothing of it is made again here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
KINDS = {"services": "Service", "pods": "Pod", "nodes": "Node", "endpoints": "Endpoints", "events": "Event"}
SLICES = "endpointslices"


class KubectlApi:
    """slices: the version of discovery.k8s.io that is served, "v1beta1" as by Kubernetes 1.20, or "v1". Listens at once."""

    def __init__(self, slices: str = "v1") -> None:
        self.slices = slices
        self.minor = "20" if slices == "v1beta1" else "32"
        self._items: list[Object] = []
        outer = self

        class Handler(_Handler):
            api = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def replace(self, items: Iterable[Object]) -> None:
        """These objects and no others. Services with slices get Endpoints too, as the controller makes them."""
        self._items = [json.loads(json.dumps(i)) for i in items]
        for number, each in enumerate(self._items):
            each["metadata"].setdefault("resourceVersion", str(100 + number))
            each["metadata"].setdefault("uid", f"uid-{number}")

    def share(self, other: KubectlApi) -> None:
        """Serves the objects of another one: a change of them is a change there too."""
        self._items = other._items

    def as_objects(self) -> list[Object]:
        """What the tracer's store is told."""
        return self._items

    def of(self, kind: str, namespace: str = "", name: str = "", labels: str = "") -> list[Object]:
        found = self._items if kind != "Endpoints" else self._endpoints()
        found = [o for o in found if o["kind"] == kind]
        if namespace:
            found = [o for o in found if o["metadata"].get("namespace") == namespace]
        if name:
            found = [o for o in found if o["metadata"]["name"] == name]
        wanted = dict(each.split("=", 1) for each in labels.split(",") if "=" in each)
        return [o for o in found if wanted.items() <= o["metadata"].get("labels", {}).items()]

    def _endpoints(self) -> list[Object]:
        """The Endpoints that the endpoints controller makes beside slices; every version of Kubernetes has them."""
        found = []
        for each in (o for o in self._items if o["kind"] == "EndpointSlice"):
            subset: Object = {"addresses": [], "notReadyAddresses": [], "ports": each["ports"]}
            for end in each["endpoints"]:
                key = "addresses" if end["conditions"].get("ready", True) else "notReadyAddresses"
                on = {"nodeName": end["nodeName"]} if "nodeName" in end else {}
                subset[key] += [{"ip": a, **on, "targetRef": end.get("targetRef")} for a in end["addresses"]]
            of = each["metadata"]
            meta = {"namespace": of["namespace"], "name": of["labels"]["kubernetes.io/service-name"]}
            found.append({"kind": "Endpoints", "metadata": meta, "subsets": [{k: v for k, v in subset.items() if v}]})
        return found

    def written(self, body: Object) -> Object:
        """An object as this version of the API serves it."""
        version = f"discovery.k8s.io/{self.slices}" if body["kind"] == "EndpointSlice" else "v1"
        body = {"apiVersion": version, **body}
        if body["kind"] == "EndpointSlice" and self.slices == "v1beta1":
            body = json.loads(json.dumps(body))
            for end in body["endpoints"]:
                end["topology"] = {"kubernetes.io/hostname": end.pop("nodeName")}
        return body

    def change(self, kind: str, namespace: str, name: str, patch: Object) -> Object:
        (found,) = self.of(kind, namespace, name)
        _merge(found, patch)
        return found

    def kubeconfig(self, folder: Path) -> str:
        """The path of a kubeconfig that leads here."""
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "lab", "user": "me"}}],
            "clusters": [{"name": "lab", "cluster": {"server": f"http://127.0.0.1:{self._server.server_address[1]}"}}],
            "users": [{"name": "me", "user": {}}],
        }  # fmt: skip
        path = folder / f"config-{self.slices}"
        path.write_text(json.dumps(config))
        return str(path)


def _merge(into: Object, patch: Object) -> None:
    """A strategic merge, as far as `kubectl edit` of a Service needs it: ports are known by their numbers."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        elif key == "ports":
            for each in value:
                same = [p for p in into[key] if p["port"] == each.get("port")]
                _merge(same[0], each)
        elif not key.startswith("$"):
            into[key] = value


class _Handler(BaseHTTPRequestHandler):
    api: KubectlApi
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        words = url.path.strip("/").split("/")
        found = self._discovery(url.path)
        if found is None:
            found = self._objects(words, {k: v[0] for k, v in parse_qs(url.query).items()})
        if found is None:
            self._answer(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                               "message": f"{url.path} not found"})  # fmt: skip
        else:
            self._answer(200, found)

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, _, _, namespace, resource, name = urlsplit(self.path).path.strip("/").split("/")
        self._answer(200, self.api.written(self.api.change(KINDS[resource], namespace, name, body)))

    def _discovery(self, path: str) -> Object | None:
        slices = self.api.slices
        group = {"groupVersion": f"discovery.k8s.io/{slices}", "version": slices}
        names = {"pods": "po", "services": "svc", "nodes": "no", "endpoints": "ep", "events": "ev"}
        verbs = ["get", "list", "patch", "watch"]
        found: dict[str, Object] = {
            "/version": {"major": "1", "minor": self.api.minor, "gitVersion": f"v1.{self.api.minor}.0"},
            "/openapi/v3": {"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}},
            "/openapi/v3/api/v1": {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1"}, "paths": {
                "/api/v1/namespaces/{namespace}/services/{name}": {"patch": {
                    "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                    "x-kubernetes-group-version-kind": {"group": "", "version": "v1", "kind": "Service"}}}}},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": "discovery.k8s.io", "versions": [group], "preferredVersion": group}]},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [
                {"name": n, "singularName": n.rstrip("s"), "namespaced": n != "nodes", "kind": KINDS[n], "verbs": verbs,
                 "shortNames": [short]} for n, short in names.items()]},
            f"/apis/{group['groupVersion']}": {
                "kind": "APIResourceList", "groupVersion": group["groupVersion"], "resources": [
                    {"name": SLICES, "singularName": "endpointslice", "namespaced": True, "kind": "EndpointSlice",
                     "verbs": verbs}]},
        }  # fmt: skip
        return found.get(path)

    def _objects(self, words: list[str], query: dict[str, str]) -> Object | None:
        words = words[2:] if words[:2] == ["api", "v1"] else words[3:]
        namespace = ""
        if words[:1] == ["namespaces"] and len(words) > 2:
            namespace, words = words[1], words[2:]
        kind = "EndpointSlice" if words[:1] == [SLICES] else KINDS.get(words[0] if words else "", "")
        if not kind:
            return None
        found = self.api.of(kind, namespace, words[1] if len(words) > 1 else "", query.get("labelSelector", ""))
        if len(words) > 1:
            return self.api.written(found[0]) if found else None
        version = f"discovery.k8s.io/{self.api.slices}" if kind == "EndpointSlice" else "v1"
        items = [self.api.written(o) for o in found]
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items}

    def _answer(self, status: int, body: Object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
