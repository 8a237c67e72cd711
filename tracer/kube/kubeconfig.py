# SPDX-License-Identifier: Apache-2.0
"""Finds the API server and the credentials for it: from a kubeconfig, or from the service account of the own pod.

Rarely needed modules (TLS, YAML by python3-yaml, credential plugins) are imported on demand. Client libraries were measured and
rejected: docs/kubernetes.md.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tracer.errors import NoObjects
from tracer.kube import plugin, trust
from tracer.kube.kubeconfig_text import parse, secret, text_value
from tracer.kube.trust import Trust
from tracer.util import untrusted_file

if TYPE_CHECKING:
    import ssl

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60
"""Time that a token is used before its file or program is read again, s. Token files are replaced about hourly."""


@dataclass
class ApiAccess:
    """The URL of an API server and the credentials for it.

    Attributes:
        scheme, host, port, path: The parts of its URL.
        context: The TLS context; None = plain http.
        token_file, command: Source of the bearer token if it is not fixed.
        owners: User ids that may own the token file; None = any.
        source: Where all this was found. Only this and the URL are ever printed.
        unchecked: The server's certificate is not verified (insecure-skip-tls-verify).
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
    owners: Collection[int] | None = None
    unchecked: bool = False
    _until: float = 0.0

    @property
    def is_secret_exposed(self) -> bool:
        """Whether the credentials would leave this machine without TLS."""
        secret = self.token or self.token_file or self.command or self.basic
        return bool(secret) and self.context is None and not _is_loopback(self.host)

    def headers(self) -> dict[str, str]:
        """Returns the authorization header for a request. Raises OSError if there is no token."""
        if (self.token_file or self.command) and time.monotonic() >= self._until:
            self.token = self._token()
            self._until = time.monotonic() + TOKEN_SECONDS
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        return {"Authorization": f"Basic {self.basic}"} if self.basic else {}

    def renew(self) -> None:
        """Reads the token again before the next request, because the server rejected it."""
        self._until = 0.0

    def _token(self) -> str:
        if self.command and not self.token_file:
            return plugin.token(self.command, self.environment)
        try:
            found = untrusted_file.read(self.token_file, plugin.MOST, self.owners).decode(errors="replace").strip()
        except OSError as e:
            raise OSError(e.errno, f"the token file {self.token_file} cannot be read: {e.strerror}") from e
        if not plugin.is_token(found):
            raise OSError(f"the file {self.token_file} has no token")
        return found


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find(path: str | None, environment: dict[str, str] | None = None, context: str = "") -> ApiAccess | None:
    """Returns the access to use: the given file, $KUBECONFIG, the pod's account, then the usual places; None = none found.

    Args:
        path: The given file; None = none.
        environment: Environment variables; None = those of this process.
        context: Context of the kubeconfig; "" = its current one.

    Raises:
        NoObjects: The file cannot be used.
    """
    env = os.environ if environment is None else environment
    if path:
        return read(path, context=context)
    named = [p for p in env.get("KUBECONFIG", "").split(os.pathsep) if p]
    if named:
        return read(named[0], context=context)
    inside = in_cluster(env)
    if inside:
        return inside
    first: NoObjects | None = None
    for place, trusted in trust.usual(env):
        if os.access(place, os.R_OK):
            try:
                return read(place, trusted, context)
            except NoObjects as e:
                first = first or e
    if first:
        raise first
    return None


def in_cluster(environment: Any, account: Path = ACCOUNT) -> ApiAccess | None:
    """Returns the service account of this pod; None outside of a pod. Raises NoObjects if it cannot be used."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (account / "token").exists():
        return None
    import ssl

    try:
        context = ssl.create_default_context(cadata=untrusted_file.text(account / "ca.crt"))
        number = int(port)
    except (OSError, ValueError) as e:
        raise NoObjects(f"The pod's account in {account} cannot be used: {e}.") from e
    return ApiAccess("https", host, number, context=context, token_file=str(account / "token"), source="the pod's account")


def read(path: str, trusted: Trust = trust.NAMED, context: str = "") -> ApiAccess:
    """Returns a context of a kubeconfig, "" = the current one. Raises NoObjects with one sentence about the error."""
    try:
        text, owners = trusted.read(path)
        body = parse(text)
    except untrusted_file.UnsafeFile as e:
        raise NoObjects(f"The kubeconfig {path} is not used: {e.strerror}.") from e
    except OSError as e:
        raise NoObjects(f"The kubeconfig {path} cannot be read: {e.strerror}.") from e
    except ImportError as e:
        raise NoObjects(f"The kubeconfig {path} cannot be read without PyYAML: install python3-yaml.") from e
    except ValueError as e:
        raise NoObjects(f"The kubeconfig {path} is not valid YAML.") from e
    try:
        contexts, current = _named(body, "contexts", "context"), context or body["current-context"]
        cluster = _named(body, "clusters", "cluster")[contexts[current]["cluster"]]
        user = _named(body, "users", "user").get(contexts[current].get("user", ""), {})
        access = _access(cluster, user, Path(path).parent, owners)
        access.source = path
    except (KeyError, TypeError, AttributeError) as e:
        raise NoObjects(f"The kubeconfig {path} names no usable cluster: {e} is missing or wrong.") from e
    except (OSError, ValueError) as e:
        raise NoObjects(f"The kubeconfig {path} names a certificate that cannot be used: {e}.") from e
    if access.is_secret_exposed:
        raise NoObjects(
            f"The kubeconfig {path} would send a token or password to {access.host} by plain http, without encryption:"
            " use an https URL for its server."
        )
    if access.command and not access.token_file and not trusted.runs:
        raise NoObjects(
            f"The kubeconfig {path} uses a credential program, {access.command[0]!r}, and belongs to another user: root runs"
            f" that program only if the file is given by --kubeconfig {path}."
        )
    return access


def _named(body: Any, kind: str, of: str) -> dict[str, Any]:
    return {entry["name"]: entry.get(of) or {} for entry in body.get(kind) or ()}


def _access(cluster: Any, user: Any, folder: Path, owners: Collection[int] | None = None) -> ApiAccess:
    url = urlsplit(text_value(cluster["server"], "server"))
    if url.scheme not in ("http", "https") or not url.hostname:
        raise TypeError("server")
    context, unchecked = None, False
    if url.scheme == "https":
        import ssl

        # A file with certificate authorities is never sent, so a kubeconfig of any owner may name root's.
        authority = _data(cluster, "certificate-authority", folder, None if owners is None else {0, *owners})
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            unchecked = True
        _client_certificate(context, user, folder, owners)
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError as e:
        raise TypeError("the port of its server") from e
    token = secret(user.get("token"), "token")
    access = ApiAccess(url.scheme, url.hostname or "", port, url.path.rstrip("/"), context, token)
    access.owners, access.unchecked = owners, unchecked
    access.server_name = text_value(cluster.get("tls-server-name"), "tls-server-name")
    if user.get("tokenFile"):
        access.token_file = str(folder / text_value(user["tokenFile"], "tokenFile"))
    if user.get("username"):
        name, password = text_value(user["username"], "username"), text_value(user.get("password"), "password")
        access.basic = base64.b64encode(f"{name}:{password}".encode()).decode()
    program = user.get("exec")
    if program:
        name = text_value(program["command"], "command")
        arguments = (text_value(a, "args") for a in program.get("args") or ())
        access.command = (str(folder / name) if "/" in name else name, *arguments)
        info = {"apiVersion": program["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
        access.environment = {text_value(e["name"], "env"): text_value(e["value"], "env") for e in program.get("env") or ()}
        access.environment["KUBERNETES_EXEC_INFO"] = json.dumps(info)
    return access


def _data(entry: Any, name: str, folder: Path, owners: Collection[int] | None = None) -> bytes:
    """Returns a certificate or key, from the kubeconfig or from the file that it names."""
    if entry.get(f"{name}-data"):
        return base64.b64decode(entry[f"{name}-data"])
    path = text_value(entry.get(name), name)
    if not path:
        return b""
    try:
        return untrusted_file.read(folder / path, owners=owners)
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(folder / path)) from e


def _client_certificate(context: ssl.SSLContext, user: Any, folder: Path, owners: Collection[int] | None = None) -> None:
    """Loads the client certificate. ssl takes only files, so data of the kubeconfig is put into a file in memory."""
    certificate, key = _data(user, "client-certificate", folder, owners), _data(user, "client-key", folder, owners)
    if certificate and key:
        with open(os.memfd_create("client certificate"), "wb") as both:
            both.write(certificate.rstrip() + b"\n" + key)
            both.flush()
            context.load_cert_chain(f"/proc/self/fd/{both.fileno()}")
