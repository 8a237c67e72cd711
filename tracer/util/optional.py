# SPDX-License-Identifier: Apache-2.0
"""Import of optional libraries, on use: some commands need them (extras of pyproject.toml), recording does not."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from tracer.errors import NoLibrary

DEBIAN_PACKAGES = {
    "prometheus_client": "python3-prometheus-client", "scapy": "python3-scapy", "textual": "python3-textual",
}  # fmt: skip
"""Libraries that Debian has. For the others the message names the checkout, whose metadata has their names and versions."""
EXTRAS = {
    "chdb": "fleet",
    "opentelemetry": "otlp",
    "prometheus_client": "agent",
    "pyiceberg": "iceberg",
    "pyspark": "fleet",
    "textual": "ui",
}
"""Libraries that are in another extra than `analysis`."""


def require_optional(name: str, what: str) -> ModuleType:
    """Imports a library.

    Args:
        name: Name of the module.
        what: What needs it, for the message.

    Raises:
        NoLibrary: It is not installed. The message names no package of PyPI: a name there can be another project's.
    """
    try:
        return import_module(name)
    except ImportError as e:
        package = name.partition(".")[0]
        raise NoLibrary(f"{what} needs {package}, which is not installed: {installation(package)}. ({e})") from e


def installation(package: str) -> str:
    """How a library is installed, as a clause."""
    debian = DEBIAN_PACKAGES.get(package)
    checkout = f"in a virtual environment, pip install '.[{EXTRAS.get(package, 'analysis')}]' in a checkout"
    return f"apt-get install {debian}, or {checkout}" if debian else checkout
