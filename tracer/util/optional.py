# SPDX-License-Identifier: Apache-2.0
"""Import of optional libraries, on use: reading captures needs them (in pyproject.toml: analysis), recording does not."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from tracer.errors import NoLibrary


def require_optional(name: str, what: str) -> ModuleType:
    """Imports a library.

    Args:
        name: Name of the module.
        what: What needs it, for the message.

    Raises:
        NoLibrary: It is not installed. The message does not name k8snet-trace on PyPI: that name is not this project there.
    """
    try:
        return import_module(name)
    except ImportError as e:
        package = name.partition(".")[0]
        install = f"pip install {package}, or in a checkout pip install '.[analysis]'"
        raise NoLibrary(f"{what} needs {package}, which is not installed: {install}. ({e})") from e
