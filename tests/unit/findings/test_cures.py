# SPDX-License-Identifier: Apache-2.0
"""Every finding has a case in which its check and its cure are carried out (tests/kernel/all_cures.py), and the kubectl
commands that it prints run here, against an API server of Kubernetes 1.20 and of newer versions.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from incidents import objects
from tests.kernel.cures import all_cases, commands
from tests.support import findings as f
from tests.support.kubectl_api import KubectlApi
from tests.support.policies import policy
from tracer.audit import checks
from tracer.findings import (
    endpoint_not_ready,
    finders,
    hostport_takes_service,
    no_local_endpoints,
    proofs,
    rules_behind_objects,
    syn_finders,
)
from tracer.findings.context import FindingContext
from tracer.findings.nodeport_host_process import conflict
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.kube import Owner
from tracer.node.kube_proxy import KubeProxy
from tracer.node.node import ListeningSocket

ROOT = Path(__file__).resolve().parents[3]
CASES = all_cases()
NAMES = sorted({name for name, _ in (*finders(), *syn_finders(), *checks())})
FILES = [p for folder in ("findings", "audit") for p in sorted((ROOT / "tracer" / folder).glob("*.py"))]


@pytest.mark.parametrize("name", NAMES)
def test_check_and_cure_are_carried_out_somewhere(name: str) -> None:
    """A new finding needs a case. A finding with several causes, each with its own call of Finding, needs one for each."""
    calls = Counter(node.func.id for path in FILES if path.stem == name for node in ast.walk(ast.parse(path.read_text()))
                   if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding")  # fmt: skip
    assert sum(case.finding == name for case in CASES) >= max(1, calls["Finding"])


def test_each_case_is_of_a_finding() -> None:
    assert {case.finding for case in CASES} == set(NAMES) and len({case.text for case in CASES}) == len(CASES)


OBJECTS = [
    objects.node("node-1", "192.168.56.10", "10.244.0.0/24"),
    objects.service("shop/orders", "172.30.0.10", 5432, 30306, "pg", externalTrafficPolicy="Local"),
    objects.endpoints("shop/orders", [("pg-0", "10.244.0.11", "node-1")], 5432, "pg"),
    objects.pod("shop/pg-0", "10.244.0.11", "node-1", 5432, 5432),
    objects.pod("db/other", "10.244.0.12", "node-1", 80),
    policy("shop/deny-all", policyTypes=["Ingress"]),
]
OBJECTS[3]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
EXPECTED = {
    "kubectl get endpoints -n shop orders": "nodeName: node-1",
    "kubectl get service -n shop orders": "nodePort: 30306",
    "kubectl describe pod -n shop pg-0 | grep": "Host Port: +5432/TCP",
    "kubectl describe pod -n shop pg-0": "Ready +False",
    "kubectl get pods -A -o custom-columns": r"\ANAMESPACE +NAME +HOSTPORT\nshop +pg-0 +5432\n\Z",
    "kubectl get pods -n shop": "pg-0",
    "kubectl get endpointslices -n shop": "- 10.244.0.11",
    "kubectl get networkpolicies -n shop": "name: deny-all",
    "kubectl edit service -n shop orders": "edited",
}
"""Expected output of a command, by the command's beginning; the longest matching beginning counts."""


def printed() -> Iterator[str]:
    """Checks and cures of findings that contain kubectl commands."""
    store = ObjectStore("node-1")
    store.load(OBJECTS)
    cluster = ClusterView(store, CniCache(()), frozenset({"192.168.56.10"}))
    context = FindingContext(cluster, f.FakeNode(proxy=KubeProxy(7, (("bare", "the host name"),))))
    (port,) = store.services.all(("shop", "orders"))
    no_local = no_local_endpoints.conflict(port, [], context)
    assert no_local
    yield from (no_local.check, no_local.cure)
    port_conflict = conflict(port.owner(), ListeningSocket("0.0.0.0", 30306, 5, "x"), "tcp", "", [], context)
    yield from (port_conflict.check, port_conflict.cure)
    pod = Owner("Pod", "shop", "pg-0")
    yield from (f"`{hostport_takes_service.host_ports(5432, of)}`" for of in (pod, None))
    yield proofs.check_of_policies("shop")
    yield rules_behind_objects.check_of(port)
    yield from (endpoint_not_ready._check("shop", name) for name in ("pg-0", ""))


PRINTED = sorted({c for text in printed() for c in commands(text) if c.startswith("kubectl")})


def test_each_command_of_kubectl_is_known() -> None:
    """A kubectl command that another file starts to print must run here, too."""
    written = {m for path in FILES for m in re.findall(r"[`\"]kubectl (\w+ \w+)", path.read_text())}
    assert written and written <= {" ".join(c.split()[1:3]) for c in PRINTED}


@pytest.mark.parametrize("slices", ["v1beta1", "v1"])
@pytest.mark.parametrize("command", PRINTED)
def test_kubectl_prints_what_the_finding_says(command: str, slices: str, tmp_path: Path) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    api = KubectlApi(slices)
    api.replace(OBJECTS)
    editor = "sed -i 's/nodePort: 30306/nodePort: 30307/'"
    env = {**os.environ, "KUBECONFIG": api.kubeconfig(tmp_path), "KUBE_EDITOR": editor, "HOME": str(tmp_path)}
    try:
        done = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, check=False, timeout=120)
    finally:
        api.die()
    expected = EXPECTED[max((e for e in EXPECTED if command.startswith(e)), key=len)]
    assert done.returncode == 0 and re.search(expected, done.stdout), (command, done)
    if " edit " in command:
        assert api.stored["Service", "shop", "orders"]["spec"]["ports"][0]["nodePort"] == 30307
