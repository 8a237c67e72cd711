# SPDX-License-Identifier: Apache-2.0
"""kubeconfigs: the values that are read, and the sentences about files that cannot be used. No token is ever shown."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tracer.errors import NoObjects
from tracer.kube import kubeconfig
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.filter import Filter

BASE: dict[str, Any] = {
    "current-context": "lab",
    "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}, {"name": "other", "context": {"cluster": "x"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/base/", "insecure-skip-tls-verify": True}}],
    "users": [{"name": "u", "user": {"token": "secret-token"}}],
}


def write(path: Path, **changes: Any) -> str:
    (path / "config").write_text(json.dumps(BASE | changes))
    return str(path / "config")


def test_the_current_context(tmp_path: Path) -> None:
    access = kubeconfig.read(write(tmp_path))
    assert (access.scheme, access.host, access.port, access.path) == ("https", "10.0.0.1", 6443, "/base")
    assert access.headers() == {"Authorization": "Bearer secret-token"}
    assert "secret-token" not in repr(access)


def test_a_program_that_gives_tokens(tmp_path: Path) -> None:
    program = tmp_path / "get-token"
    program.write_text('#!/bin/sh\necho "{\\"status\\":{\\"token\\":\\"$1-$PLACE\\"}}"\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./get-token", "args": ["of"],
              "env": [{"name": "PLACE", "value": "here"}]}  # fmt: skip
    access = kubeconfig.read(write(tmp_path, users=[{"name": "u", "user": {"exec": plugin}}]))
    assert access.headers() == {"Authorization": "Bearer of-here"}
    program.write_text("#!/bin/sh\nexit 1\n")
    assert access.headers() == {"Authorization": "Bearer of-here"}, "the token is kept for a while"
    access.renew()
    with pytest.raises(OSError, match="gave no token"):
        access.headers()


def test_yaml_and_a_password(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "current-context: a\ncontexts:\n- {name: a, context: {cluster: b, user: c}}\n"
        "clusters:\n- name: b\n  cluster: {server: 'http://localhost:8001'}\n"
        "users:\n- {name: c, user: {username: x, password: y}}\n"
    )
    access = kubeconfig.read(str(tmp_path / "config"))
    assert (access.context, access.port) == (None, 8001)
    assert access.headers() == {"Authorization": "Basic eDp5"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not valid YAML"),
        ("[]", "names no usable cluster"),
        (json.dumps(BASE | {"current-context": "gone"}), "names no usable cluster: 'gone' is missing"),
        (json.dumps(BASE | {"clusters": []}), "names no usable cluster"),
        (
            json.dumps(
                BASE | {"clusters": [{"name": "c", "cluster": {"server": "https://a", "certificate-authority": "no.crt"}}]}
            ),
            "names a certificate that cannot be used",
        ),
    ],
)
def test_an_unusable_kubeconfig_gives_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(NoObjects, match=sentence) as e:
        kubeconfig.read(str(tmp_path / "config"))
    assert e.value.status == 8
    assert "secret" not in str(e.value)


def test_the_places_where_a_kubeconfig_is_searched(tmp_path: Path) -> None:
    path = write(tmp_path)
    found = kubeconfig.find(None, {"KUBECONFIG": path, "HOME": "/nowhere"})
    assert found and found.host == "10.0.0.1"
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(json.dumps(BASE))
    assert kubeconfig.find(None, {"HOME": str(tmp_path)})
    assert kubeconfig.in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path / "no") is None
    with pytest.raises(NoObjects, match="cannot be read"):
        kubeconfig.find(None, {"KUBECONFIG": "/no/file"})


PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./get-token"}


@pytest.mark.parametrize(
    "user",
    [{"token": "t"}, {"tokenFile": "t"}, {"username": "a", "password": "b"}, {"exec": PLUGIN}],
    ids=["token", "file", "password", "program"],
)
def test_no_token_goes_over_plain_http(tmp_path: Path, user: dict[str, Any]) -> None:
    for server, refused in (("http://10.0.0.1:8080", True), ("http://127.0.0.1:8001", False), ("http://localhost:1", False)):
        path = write(tmp_path, clusters=[{"name": "c", "cluster": {"server": server}}], users=[{"name": "u", "user": user}])
        if refused:
            with pytest.raises(NoObjects, match=r"would send a token or password to 10\.0\.0\.1 by plain http"):
                kubeconfig.read(path)
        else:
            assert kubeconfig.read(path).context is None
    nothing = write(tmp_path, clusters=[{"name": "c", "cluster": {"server": "http://10.0.0.1"}}], users=[])
    assert kubeconfig.read(nothing).headers() == {}


def test_an_unchecked_certificate_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert kubeconfig.read(path).unchecked
    kube = OwnerResolver(ObjectSource(kubeconfig=path), Selectors(), Filter())
    assert any(
        "insecure-skip-tls-verify: the API server is not authenticated" in note and path in note for note in kube.notes()
    )
    kube.close()
