"""Where the API is and how to speak to it: a kubeconfig, or the account of the pod that this runs in.

What only a few need (TLS, YAML by python3-yaml, programs that give tokens) is imported when it is needed. Client libraries
were measured and left: docs/kubernetes.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tracer.errors import NoObjects

if TYPE_CHECKING:
    import ssl

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60
"""How long a token is used before its file or program is asked again: files are replaced about hourly."""
EXEC_SECONDS = 30


@dataclass
class Access:
    """An API server and the right to ask it.

    scheme, host, port, path: of its URL. context: for TLS, None for plain http. token_file, command: where the bearer token
    comes from, when it is not fixed. source: where all this was found; nothing else here is ever printed but the URL.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    context: ssl.SSLContext | None = None
    token: str = field(default="", repr=False)
    token_file: str = ""
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    basic: str = field(default="", repr=False)
    server_name: str = ""
    source: str = ""
    _until: float = 0.0

    def headers(self) -> dict[str, str]:
        """The authorisation to send now. Raises OSError when the token cannot be had."""
        if (self.token_file or self.command) and time.monotonic() >= self._until:
            self.token = Path(self.token_file).read_text().strip() if self.token_file else self._run()
            self._until = time.monotonic() + TOKEN_SECONDS
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        return {"Authorization": f"Basic {self.basic}"} if self.basic else {}

    def renew(self) -> None:
        """The server did not believe the token: ask for it anew before the next request."""
        self._until = 0.0

    def _run(self) -> str:
        """A credential plugin's token: client.authentication.k8s.io, as kubectl calls it."""
        import subprocess

        try:
            done = subprocess.run(
                self.command, env=os.environ | self.environment, capture_output=True, timeout=EXEC_SECONDS, check=True
            )
            return str(json.loads(done.stdout)["status"]["token"])
        except (subprocess.SubprocessError, ValueError, KeyError) as e:
            raise OSError(f"{self.command[0]} gave no token") from e


def find(path: str | None, environment: dict[str, str] | None = None) -> Access | None:
    """The access to use: the file given, $KUBECONFIG, the pod's account, then the usual places; None when there is none.

    Raises NoObjects for a file that was named and cannot be used.
    """
    env = os.environ if environment is None else environment
    if path:
        return read(path)
    named = [p for p in env.get("KUBECONFIG", "").split(os.pathsep) if p]
    if named:
        return read(named[0])
    inside = in_cluster(env)
    if inside:
        return inside
    homes = [env.get("HOME", "/root"), f"/home/{env['SUDO_USER']}" if env.get("SUDO_USER") else ""]
    usual = [*(f"{home}/.kube/config" for home in homes if home), "/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml"]
    for place in usual:
        if os.access(place, os.R_OK):
            return read(place)
    return None


def in_cluster(environment: Any, account: Path = ACCOUNT) -> Access | None:
    """The service account of this pod; None outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (account / "token").exists():
        return None
    import ssl

    context = ssl.create_default_context(cafile=str(account / "ca.crt"))
    return Access("https", host, int(port), context=context, token_file=str(account / "token"), source="the pod's account")


def read(path: str) -> Access:
    """The current context of a kubeconfig. Raises NoObjects with one sentence about what is wrong."""
    try:
        body = _parse(Path(path).read_bytes())
    except OSError as e:
        raise NoObjects(f"The kubeconfig {path} cannot be read: {e.strerror}.") from e
    except ImportError as e:
        raise NoObjects(f"The kubeconfig {path} cannot be read without PyYAML: install python3-yaml.") from e
    except ValueError as e:
        raise NoObjects(f"The kubeconfig {path} is no YAML.") from e
    try:
        contexts, current = _named(body, "contexts", "context"), body["current-context"]
        cluster = _named(body, "clusters", "cluster")[contexts[current]["cluster"]]
        user = _named(body, "users", "user").get(contexts[current].get("user", ""), {})
        access = _access(cluster, user, Path(path).parent)
        access.source = path
        return access
    except (KeyError, TypeError, AttributeError) as e:
        raise NoObjects(f"The kubeconfig {path} names no usable cluster: {e} is missing or wrong.") from e
    except (OSError, ValueError, binascii.Error) as e:
        raise NoObjects(f"The kubeconfig {path} names a certificate that cannot be used: {e}.") from e


def _parse(text: bytes) -> Any:
    """YAML, or JSON, which needs no library. Raises ValueError, ImportError."""
    try:
        return json.loads(text)
    except ValueError:
        import yaml

        try:
            return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError as e:
            raise ValueError from e


def _named(body: Any, kind: str, of: str) -> dict[str, Any]:
    return {entry["name"]: entry.get(of) or {} for entry in body.get(kind) or ()}


def _access(cluster: Any, user: Any, folder: Path) -> Access:
    url = urlsplit(cluster["server"])
    context = None
    if url.scheme == "https":
        import ssl

        authority = _data(cluster, "certificate-authority", folder)
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _client_certificate(context, user, folder)
    port = url.port or (443 if url.scheme == "https" else 80)
    access = Access(url.scheme, url.hostname or "", port, url.path.rstrip("/"), context, str(user.get("token") or ""))
    access.server_name = cluster.get("tls-server-name", "")
    if user.get("tokenFile"):
        access.token_file = str(folder / user["tokenFile"])
    if user.get("username"):
        access.basic = base64.b64encode(f"{user['username']}:{user.get('password', '')}".encode()).decode()
    plugin = user.get("exec")
    if plugin:
        name = plugin["command"]
        access.command = (str(folder / name) if "/" in name else name, *map(str, plugin.get("args") or ()))
        info = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
        access.environment = {e["name"]: e["value"] for e in plugin.get("env") or ()}
        access.environment["KUBERNETES_EXEC_INFO"] = json.dumps(info)
    return access


def _data(entry: Any, name: str, folder: Path) -> bytes:
    """A certificate or key: inside the kubeconfig, or in a file beside it."""
    if entry.get(f"{name}-data"):
        return base64.b64decode(entry[f"{name}-data"])
    return (folder / entry[name]).read_bytes() if entry.get(name) else b""


def _client_certificate(context: ssl.SSLContext, user: Any, folder: Path) -> None:
    """ssl takes files only; what stands in the kubeconfig lies in one for that moment, readable by us alone."""
    import tempfile

    certificate, key = _data(user, "client-certificate", folder), _data(user, "client-key", folder)
    if certificate and key:
        with tempfile.NamedTemporaryFile() as both:
            both.write(certificate.rstrip() + b"\n" + key)
            both.flush()
            context.load_cert_chain(both.name)
