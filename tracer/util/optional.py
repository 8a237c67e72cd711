# SPDX-License-Identifier: Apache-2.0
"""The libraries that read captures need (in pyproject.toml: analysis), when they are needed: what records does without them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from tracer.errors import NoLibrary


def require_optional(name: str, what: str) -> ModuleType:
    """The library. what: what it is needed for. Raises NoLibrary.

    Its sentence never says to install k8snet-trace from PyPI: that name is not this project's there.
    """
    try:
        return import_module(name)
    except ImportError as e:
        package = name.partition(".")[0]
        install = f"pip install {package}, or in a checkout pip install '.[analysis]'"
        raise NoLibrary(f"{what} needs {package}, which is not installed: {install}. ({e})") from e
