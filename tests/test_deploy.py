"""The manifests in deploy/: valid for Kubernetes, and with the rights that the tracer asks for, no fewer and no more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tracer.kernel import rights
from tracer.kube import watch

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "deploy").glob("*.yaml"))


def objects(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_is_what_the_api_takes(path: Path, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for one in objects(path):
        validate.validate(one, version, strict=True)


def test_the_validator_refuses_what_is_wrong() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    (daemons,) = objects(ROOT / "deploy/daemonset.yaml")
    daemons["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(validate.ValidationError):
        validate.validate(daemons, "1.37", strict=True)


def test_rights_are_those_that_are_asked_for() -> None:
    (role,) = [o for o in objects(ROOT / "deploy/rbac.yaml") if o["kind"] == "ClusterRole"]
    granted = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}
    source = Path(watch.__file__).parent.joinpath("client.py").read_text() + Path(watch.__file__).read_text()
    asked = set(re.findall(r"/api(?:s/[\w.]+)?/v1/(\w+)", source))
    assert asked - {"endpoints"} == granted


def test_capabilities_are_those_that_something_is_lost_without() -> None:
    (daemons,) = objects(ROOT / "deploy/daemonset.yaml")
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    added = {f"CAP_{name}" for name in container["securityContext"]["capabilities"]["add"]}
    assert added == {rights.NEEDED, *rights.LOSES}
    told = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", (ROOT / "deploy/README.md").read_text(), re.M))
    assert {f"CAP_{name}" for name in told} == added
    assert all(text.startswith(told[name.removeprefix("CAP_")]) for name, text in rights.LOSES.items())


def test_the_account_is_the_one_that_has_them() -> None:
    (daemons,) = objects(ROOT / "deploy/daemonset.yaml")
    (binding,) = [o for o in objects(ROOT / "deploy/rbac.yaml") if o["kind"] == "ClusterRoleBinding"]
    pod = daemons["spec"]["template"]["spec"]
    assert [(s["name"], s["namespace"]) for s in binding["subjects"]] == [
        (pod["serviceAccountName"], daemons["metadata"]["namespace"])
    ]
    assert pod["hostNetwork"] and pod["hostPID"]


def test_the_image_has_what_is_imported_and_run() -> None:
    text = (ROOT / "Containerfile").read_text()
    wanted = {"click", "numpy", "pyroute2", "rich", "yaml"}
    assert {f"python3-{name}" for name in wanted} | {"python3-bpfcc", "iptables", "nftables"} <= set(
        re.findall(r"[\w-]+", text)
    )
    for line in re.findall(r"^COPY (.+) \S+$", text, re.M):
        assert all((ROOT / name).exists() for name in line.split()), line
