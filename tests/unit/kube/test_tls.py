# SPDX-License-Identifier: Apache-2.0
"""An API server with https: its certificate is checked, and the client's certificate is sent."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_server import ApiServer
from tests.support.nodes import node
from tracer.kube import kubeconfig
from tracer.kube.api_client import NODES, ApiClient

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificates")

OBJECTS = node("1.36.2-iptables-nft", "S0-empty").objects


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate, and its key."""
    made, key = folder / f"{name}.crt", folder / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:kubernetes.lab"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", made, *subject]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return made, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tls")
    for name in ("server", "client", "other"):
        certificate(place, name)
    return place


@pytest.fixture
def server(folder: Path) -> Iterator[ApiServer]:
    """A server that requires the client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.load_verify_locations(folder / "client.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    with ApiServer(OBJECTS, tls=context) as one:
        yield one


def test_a_client_key_is_never_on_the_disk(server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed while it reads its kubeconfig would leave it there."""
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", None)
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/directory")
    encoded = {
        "client-certificate-data": inline(folder / "client.crt"),
        "client-key-data": inline(folder / "client.key"),
    }
    cluster = {"certificate-authority": "server.crt"}
    assert client(folder, server.port, cluster, encoded).list(NODES)


def client(folder: Path, port: int, cluster: dict[str, Any], user: dict[str, Any]) -> ApiClient:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "l", "user": "u"}}],
        "clusters": [{"name": "l", "cluster": {"server": f"https://127.0.0.1:{port}", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    (folder / "config").write_text(json.dumps(config))
    return ApiClient(kubeconfig.read(str(folder / "config")))


def inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def test_certificates_beside_the_kubeconfig_and_inside_it(folder: Path, server: ApiServer) -> None:
    beside = ({"certificate-authority": "server.crt"}, {"client-certificate": "client.crt", "client-key": "client.key"})
    inside = (
        {"certificate-authority-data": inline(folder / "server.crt")},
        {"client-certificate-data": inline(folder / "client.crt"), "client-key-data": inline(folder / "client.key")},
    )
    for cluster, user in (beside, inside):
        nodes, version = client(folder, server.port, cluster, user).list(NODES)
        assert [n["metadata"]["name"] for n in nodes] == ["node-1", "node-2"]
        assert int(version) >= 100


def test_a_server_that_cannot_be_trusted(folder: Path, server: ApiServer) -> None:
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    with pytest.raises(ssl.SSLCertVerificationError):
        client(folder, server.port, {"certificate-authority": "other.crt"}, user).list(NODES)
    named = {"certificate-authority": "server.crt", "tls-server-name": "kubernetes.lab"}
    assert client(folder, server.port, named, user).list(NODES)[0]
    with pytest.raises(ssl.SSLCertVerificationError, match="nobody"):
        client(folder, server.port, named | {"tls-server-name": "nobody.lab"}, user).list(NODES)
    assert client(folder, server.port, {"insecure-skip-tls-verify": True}, user).list(NODES)[0]


def test_a_client_without_a_certificate(folder: Path, server: ApiServer) -> None:
    with pytest.raises(OSError):
        client(folder, server.port, {"certificate-authority": "server.crt"}, {}).list(NODES)
