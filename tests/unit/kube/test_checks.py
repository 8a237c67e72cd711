# SPDX-License-Identifier: Apache-2.0
"""The checks of `doctor` for Kubernetes: the API, how it was found and its objects, or the reason why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.api_server import ApiServer
from tests.support.waiting import PATIENCE
from tracer.errors import NoObjects
from tracer.kube import checks
from tracer.kube.kubeconfig import ApiAccess
from tracer.model.check import CheckResult


def check_api(server: ApiServer) -> list[CheckResult]:
    return list(checks.ask(ApiAccess("http", "127.0.0.1", server.port, source="/etc/kubernetes/admin.conf"), PATIENCE))


def count(server: ApiServer, kind: str) -> int:
    return sum(o["kind"] == kind for o in server.objects)


def test_an_api_that_answers(server: ApiServer) -> None:
    (result,) = check_api(server)
    pods = sum(o["kind"] == "Pod" and o["spec"].get("nodeName") == "node-1" for o in server.objects)
    assert (result.subject, result.state, result.status) == ("Kubernetes API", "ok", 0)
    assert result.text == (
        f"http://127.0.0.1:{server.port} by /etc/kubernetes/admin.conf: {count(server, 'Service')} services,"
        f" {count(server, 'EndpointSlice')} endpointslices, {count(server, 'Node')} nodes, 0 networkpolicies,"
        f" {pods} pods of node-1"
    )
    assert not server.watched("Service"), "it lists the objects, and does not watch them"


def test_an_old_cluster_has_endpoints(server: ApiServer) -> None:
    server.refuse["EndpointSlice"] = 404
    assert f"{count(server, 'Endpoints')} endpoints" in check_api(server)[0].text


def test_objects_that_the_account_may_not_list_are_reported(server: ApiServer) -> None:
    server.refuse |= {"Node": 403, "Pod": 403}
    (result,) = check_api(server)
    assert (result.state, result.status) == ("degraded", 1)
    why = "the account is not allowed to list them (403)"
    assert result.text.endswith(f"; nodes: {why}; pods: {why}")
    server.token = "another"
    assert "the account is unknown, or its token has expired (401)" in check_api(server)[0].text


def test_an_api_that_does_not_answer(server: ApiServer) -> None:
    server.die()
    (result,) = check_api(server)
    assert (result.state, result.status) == ("degraded", 1) and "does not answer (Connection refused)" in result.text


def test_a_node_that_is_not_in_the_cluster(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME")
    results = check_api(server)
    assert [f.subject for f in results] == ["Kubernetes API", "this node"] and results[1].status == 1


def test_no_kubernetes_at_all_is_no_fault(tmp_path: Path) -> None:
    (result,) = checks.gather(find=lambda path: None)
    assert (result.state, result.status) == ("degraded", 0) and "names come from rules only" in result.text

    def unusable(path: str | None) -> ApiAccess:
        raise NoObjects(f"The kubeconfig {path} is no YAML.")

    (result,) = checks.gather("/x", find=unusable)
    assert result == CheckResult("Kubernetes API", "degraded", "The kubeconfig /x is no YAML; names come from rules only", 1)


def test_by_a_kubeconfig(server: ApiServer, tmp_path: Path) -> None:
    path = server.kubeconfig(tmp_path)
    (result,) = checks.gather(path)
    assert f" by {path}: " in result.text and result.state == "ok"
