# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of Kubernetes: which API, how it was found, what it gives; or why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.api_server import ApiServer
from tests.support.waiting import PATIENCE
from tracer.errors import NoObjects
from tracer.kube import checks
from tracer.kube.kubeconfig import ApiAccess
from tracer.model.check import CheckResult


def asked(server: ApiServer) -> list[CheckResult]:
    return list(checks.ask(ApiAccess("http", "127.0.0.1", server.port, source="/etc/kubernetes/admin.conf"), PATIENCE))


def count(server: ApiServer, kind: str) -> int:
    return sum(o["kind"] == kind for o in server.objects)


def test_an_api_that_answers(server: ApiServer) -> None:
    (fact,) = asked(server)
    pods = sum(o["kind"] == "Pod" and o["spec"].get("nodeName") == "node-1" for o in server.objects)
    assert (fact.subject, fact.state, fact.status) == ("Kubernetes API", "ok", 0)
    assert fact.text == (
        f"http://127.0.0.1:{server.port} by /etc/kubernetes/admin.conf: {count(server, 'Service')} services,"
        f" {count(server, 'EndpointSlice')} endpointslices, {count(server, 'Node')} nodes, {pods} pods of node-1"
    )
    assert not server.watched("Service"), "it lists and goes"


def test_an_old_cluster_has_endpoints(server: ApiServer) -> None:
    server.refuse["EndpointSlice"] = 404
    assert f"{count(server, 'Endpoints')} endpoints" in asked(server)[0].text


def test_what_the_account_may_not_see_is_said(server: ApiServer) -> None:
    server.refuse |= {"Node": 403, "Pod": 403}
    (fact,) = asked(server)
    assert (fact.state, fact.status) == ("degraded", 1)
    why = "the account is not allowed to list them (403)"
    assert fact.text.endswith(f"; nodes: {why}; pods: {why}")
    server.token = "another"
    assert "the account is unknown, or its token has expired (401)" in asked(server)[0].text


def test_an_api_that_does_not_answer(server: ApiServer) -> None:
    server.die()
    (fact,) = asked(server)
    assert (fact.state, fact.status) == ("degraded", 1) and "does not answer (Connection refused)" in fact.text


def test_a_node_that_is_none_of_the_cluster(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME")
    facts = asked(server)
    assert [f.subject for f in facts] == ["Kubernetes API", "this node"] and facts[1].status == 1


def test_no_kubernetes_at_all_is_no_fault(tmp_path: Path) -> None:
    (fact,) = checks.gather(find=lambda path: None)
    assert (fact.state, fact.status) == ("degraded", 0) and "names come from rules only" in fact.text

    def unusable(path: str | None) -> ApiAccess:
        raise NoObjects(f"The kubeconfig {path} is no YAML.")

    (fact,) = checks.gather("/x", find=unusable)
    assert fact == CheckResult("Kubernetes API", "degraded", "The kubeconfig /x is no YAML; names come from rules only", 1)


def test_by_a_kubeconfig(server: ApiServer, tmp_path: Path) -> None:
    path = server.kubeconfig(tmp_path)
    (fact,) = checks.gather(path)
    assert f" by {path}: " in fact.text and fact.state == "ok"
