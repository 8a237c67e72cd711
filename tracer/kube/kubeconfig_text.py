# SPDX-License-Identifier: Apache-2.0
"""What is in a kubeconfig: its text, which somebody else may have written, and the values in it.

PyYAML is imported when it is needed.
"""

from __future__ import annotations

import json
from typing import Any

from tracer.kube import plugin

MOST_DEPTH = 50
"""Levels of lists and maps in a kubeconfig; it has seven."""


def parse(text: bytes) -> Any:
    """YAML, or JSON, which needs no library. Raises ValueError, ImportError.

    Aliases are refused: by them, a kilobyte can be a terabyte once it is printed or copied.
    """
    try:
        return json.loads(text)
    except RecursionError as e:
        raise ValueError from e
    except ValueError:
        import yaml

        loader, depth = getattr(yaml, "CSafeLoader", yaml.SafeLoader), 0
        try:
            for event in yaml.parse(text, loader):
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if isinstance(event, yaml.AliasEvent) or depth > MOST_DEPTH:
                    raise ValueError
            return yaml.load(text, loader)
        except yaml.YAMLError as e:
            raise ValueError from e


def word(value: Any, name: str) -> str:
    """A string, "" for nothing. Raises TypeError for anything else."""
    if value is not None and not isinstance(value, str):
        raise TypeError(name)
    return value or ""


def secret(value: Any, name: str) -> str:
    """The same, of a token. Raises TypeError, without the token in it."""
    if value and not plugin.is_token(value):
        raise TypeError(name)
    return value or ""
