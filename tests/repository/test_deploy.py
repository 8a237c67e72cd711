# SPDX-License-Identifier: Apache-2.0
"""The manifests in deploy/: valid for Kubernetes, and with exactly the rights that the tracer uses."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tracer import __version__
from tracer.cli import node_agent
from tracer.cli.store_commands import is_url
from tracer.commands import always_on
from tracer.kernel import cache_directory
from tracer.kube import watch
from tracer.kube_events import event_body, events_output
from tracer.metrics.endpoint import listen_address
from tracer.node import capabilities
from tracer.store.agent_store import SPOOL_DIRECTORY

OTLP_END_SECONDS, STORE_END_SECONDS = 2.0, 5.0
"""END_SECONDS of tracer/otlp/otlp_output.py and tracer/store/store_output.py, which need libraries."""
ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(set((ROOT / "deploy").glob("*.yaml")) - {ROOT / "deploy/kustomization.yaml"})


def objects(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_manifests_match_the_api_schema(path: Path, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for one in objects(path):
        validate.validate(one, version, strict=True)


def test_the_validator_refuses_a_wrong_field() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    (daemons,) = objects(ROOT / "deploy/daemonset.yaml")
    daemons["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(validate.ValidationError):
        validate.validate(daemons, "1.37", strict=True)


def test_the_role_grants_exactly_the_resources_that_are_read() -> None:
    (role,) = [o for o in objects(ROOT / "deploy/rbac.yaml") if o["kind"] == "ClusterRole"]
    granted = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}
    source = Path(watch.__file__).parent.joinpath("api_client.py").read_text() + Path(watch.__file__).read_text()
    requested = set(re.findall(r"/api(?:s/[\w.]+)?/v1/(\w+)", source))
    assert requested - {"endpoints"} == granted


def test_the_optional_rules_grant_exactly_what_they_say() -> None:
    """The rules in comments, as a user gets them who removes the comment signs."""
    text = (ROOT / "deploy/rbac.yaml").read_text()
    (plain,) = [o for o in yaml.safe_load_all(text) if o["kind"] == "ClusterRole"]
    used = re.sub(r"^# (?=- apiGroups|  resources|  verbs)", "", text, flags=re.M)
    (role,) = [o for o in yaml.safe_load_all(used) if o["kind"] == "ClusterRole"]
    assert [rule for rule in role["rules"] if rule not in plain["rules"]] == [
        {"apiGroups": [""], "resources": ["endpoints"], "verbs": ["list", "watch"]},
        {"apiGroups": [event_body.GROUP], "resources": ["events"], "verbs": ["create", "patch"]},
    ]
    pytest.importorskip("kubernetes_validate").validate(role, "1.37", strict=True)


def test_the_container_gets_exactly_the_capabilities_that_are_used() -> None:
    (daemons,) = objects(ROOT / "deploy/daemonset.yaml")
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    added = {f"CAP_{name}" for name in container["securityContext"]["capabilities"]["add"]}
    assert added == {capabilities.NEEDED, *capabilities.LOSES}
    documented = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", (ROOT / "deploy/README.md").read_text(), re.M))
    assert {f"CAP_{name}" for name in documented} == added
    assert all(text.startswith(documented[name.removeprefix("CAP_")]) for name, text in capabilities.LOSES.items())


def test_the_pod_runs_with_the_account_that_has_the_role() -> None:
    (daemons,) = objects(ROOT / "deploy/daemonset.yaml")
    (binding,) = [o for o in objects(ROOT / "deploy/rbac.yaml") if o["kind"] == "ClusterRoleBinding"]
    pod = daemons["spec"]["template"]["spec"]
    assert [(s["name"], s["namespace"]) for s in binding["subjects"]] == [
        (pod["serviceAccountName"], daemons["metadata"]["namespace"])
    ]
    assert pod["hostNetwork"] and pod["hostPID"]


def test_the_image_has_the_imported_and_executed_packages() -> None:
    """The image installs the Debian package, which depends on what the program imports."""
    control = (ROOT / "debian/control").read_text()
    depends = re.search(r"^Depends: (.*(?:\n .*)*)", control, re.M)
    imported = {"bpfcc", "click", "numpy", "pyroute2", "rich", "yaml"}
    assert depends and {f"python3-{name}" for name in imported} <= set(re.findall(r"[\w-]+", depends[1]))
    text = (ROOT / "Containerfile").read_text()
    assert re.search(r"apt-get install .* /tmp/k8snet-trace\.deb iptables nftables python3-prometheus-client", text)


def test_the_context_of_the_image_has_the_sources_of_the_package() -> None:
    """What package/deb copies is not ignored, and nothing else is sent to the builder."""
    ignored, *allowed = re.findall(r"^([^#\n].*)$", (ROOT / ".dockerignore").read_text(), re.M)
    copied = re.search(r"^cp -r (.+) \"\$tree\"$", (ROOT / "package/deb").read_text(), re.M)
    assert copied and ignored == "*" and allowed == [*(f"!{name}" for name in sorted(copied[1].split())), "**/__pycache__"]
    assert all((ROOT / name).exists() for name in copied[1].split())


def container() -> tuple[dict[str, Any], dict[str, Any]]:
    """The specification of the pod, and that of its only container."""
    (daemons,) = objects(ROOT / "deploy/daemonset.yaml")
    pod = daemons["spec"]["template"]["spec"]
    (one,) = pod["containers"]
    return pod, one


def test_the_image_is_pinned_by_a_digest() -> None:
    """The image has this version's tag and a digest; the digest is a placeholder until the user writes the real one."""
    _, one = container()
    found = re.fullmatch(r"registry\.example\.com/k8snet-trace:([\w.]+)@sha256:([0-9a-f]{64})", one["image"])
    assert found and found[1] == __version__ and set(found[2]) == {"0"}
    text = (ROOT / "deploy/README.md").read_text()
    assert f"k8snet-trace:{__version__}@$(cat digest)" in text and "--digestfile digest" in text
    for path in (*FILES, ROOT / "deploy/README.md", ROOT / "Containerfile"):
        assert "latest" not in path.read_text(), path


def test_the_container_has_no_more_rights_than_it_needs() -> None:
    pod, one = container()
    context = one["securityContext"]
    assert context["capabilities"]["drop"] == ["ALL"] and "privileged" not in context
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["readOnlyRootFilesystem"] is True
    cache = str(cache_directory.DIRECTORY)
    assert {v["mountPath"]: v["name"] for v in one["volumeMounts"]} == {"/tmp": "tmp", cache: "programs"}
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert volumes["tmp"]["emptyDir"]["sizeLimit"]
    host_path = {"path": cache, "type": "DirectoryOrCreate"}
    assert volumes == {"tmp": volumes["tmp"], "programs": {"name": "programs", "hostPath": host_path}}, "no other of the node's"
    assert one["command"][2].startswith("chmod 1777 /tmp && install -d -m 700 /tmp/captures && "), "an emptyDir has mode 0777"
    assert {"hostIPC", "shareProcessNamespace"}.isdisjoint(pod)


def test_the_agent_serves_metrics_at_the_port_that_the_probes_and_prometheus_ask() -> None:
    pod, one = container()
    port = listen_address(node_agent.DEFAULT_ADDRESS).port
    assert one["command"][2].endswith(f' && exec k8snet-trace agent --metrics "$POD_IP:{port}"')
    (env,) = (each for each in one["env"] if each["name"] == "POD_IP")
    assert env["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert one["ports"] == [{"name": "metrics", "containerPort": port}]
    asked = {kind: one[kind]["httpGet"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {each["port"] for each in asked.values()} == {"metrics"}
    assert [each["path"] for each in asked.values()] == ["/readyz", "/readyz", "/healthz"]
    (daemons,) = objects(ROOT / "deploy/daemonset.yaml")
    annotations = daemons["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {
        "prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics",
    }  # fmt: skip
    ends = always_on.END_SECONDS + events_output.END_SECONDS + OTLP_END_SECONDS + STORE_END_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= 2 * ends
    (monitor,) = objects(ROOT / "deploy/prometheus/podmonitor.yaml")
    assert monitor["spec"]["selector"] == daemons["spec"]["selector"]
    assert [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]] == ["metrics"]
    assert monitor["metadata"]["namespace"] == daemons["metadata"]["namespace"]


def test_the_risk_of_exec_is_documented_first() -> None:
    lines = (ROOT / "deploy/README.md").read_text().splitlines()
    first = "\n".join(lines[:12])
    assert "`exec`" in lines[2] and "root on its node" in lines[2]
    added = container()[1]["securityContext"]["capabilities"]["add"]
    assert all(name in added for name in re.findall(r"`([A-Z]+_[A-Z]+)`", first)) and "pods/exec" in first


def test_the_base_of_the_image_is_pinned_by_a_digest() -> None:
    text = (ROOT / "Containerfile").read_text()
    assert re.search(r"^ARG BASE=docker\.io/library/debian:trixie-\d{8}-slim@sha256:[0-9a-f]{64}$", text, re.M)
    assert re.findall(r"^FROM (\S+)", text, re.M) == ["$BASE", "$BASE", "$BASE", "node", "node"]
    assert "--no-deps --only-binary=:all: --require-hashes -r /arrow.txt" in text
    labels = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", text))
    assert labels == {"title", "description", "licenses", "version"}, "there is no address to name"


def with_store(place: Path) -> list[dict[str, Any]]:
    """What `kubectl kustomize` makes of a copy of deploy/, in which the store is enabled as the comment there says."""
    shutil.copytree(ROOT / "deploy", place / "deploy")
    kustomization = place / "deploy/kustomization.yaml"
    enabled = re.sub(r"^#(components:|- store)$", r"\1", kustomization.read_text(), flags=re.M)
    kustomization.write_text(enabled)
    kubectl = Path(sys.executable).with_name("kubectl")
    made = subprocess.run([kubectl, "kustomize", kustomization.parent], stdout=subprocess.PIPE, text=True, check=True)
    return [each for each in yaml.safe_load_all(made.stdout) if each]


def test_the_store_adds_an_option_an_environment_and_the_spool(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    made = with_store(tmp_path)
    for one in made:
        validate.validate(one, "1.37", strict=True)
    (daemons,) = (each for each in made if each["kind"] == "DaemonSet")
    (settings,) = (each for each in made if each["kind"] == "ConfigMap")
    pod = daemons["spec"]["template"]["spec"]
    (one,) = pod["containers"]
    plain_pod, plain = container()
    assert one["command"][2].rstrip("\n") == f'{plain["command"][2]} --store "$STORE"'
    assert set(settings["data"]) == {"STORE"} and is_url(settings["data"]["STORE"])
    assert one["envFrom"] == [
        {"configMapRef": {"name": settings["metadata"]["name"]}},
        {"secretRef": {"name": "k8snet-trace-store", "optional": True}},
    ]
    spool = str(Path(SPOOL_DIRECTORY).parent)
    added = [each for each in one["volumeMounts"] if each not in plain["volumeMounts"]]
    assert added == [{"name": "spool", "mountPath": spool}]
    assert [each for each in pod["volumes"] if each not in plain_pod["volumes"]] == [
        {"name": "spool", "hostPath": {"path": spool, "type": "DirectoryOrCreate"}}
    ]
    assert one["securityContext"] == plain["securityContext"]
