"""The libraries of k8snet-trace[analysis], when they are needed: what records on a node does without them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from tracer.errors import NoLibrary


def need(name: str, what: str) -> ModuleType:
    """The library. what: what it is needed for. Raises NoLibrary."""
    try:
        return import_module(name)
    except ImportError as e:
        package = name.partition(".")[0]
        raise NoLibrary(f"{what} needs {package}: pip install 'k8snet-trace[analysis]'. ({e})") from e
