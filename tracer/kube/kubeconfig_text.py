# SPDX-License-Identifier: Apache-2.0
"""Parses a kubeconfig, which is untrusted text. PyYAML is imported on demand."""

from __future__ import annotations

import json
from typing import Any

from tracer.kube import plugin

MOST_DEPTH = 50
"""Maximum nesting of lists and maps in a kubeconfig. A valid one has seven levels."""


def parse(text: bytes) -> Any:
    """Parses YAML, or JSON, which needs no library. Raises ValueError, ImportError.

    Aliases are refused: with them a kilobyte of text can expand to a terabyte.
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


def text_value(value: Any, name: str) -> str:
    """Returns a string; "" for None. Raises TypeError for any other type."""
    if value is not None and not isinstance(value, str):
        raise TypeError(name)
    return value or ""


def secret(value: Any, name: str) -> str:
    """Returns a token; "" for None. Raises TypeError, without the token in its message."""
    if value and not plugin.is_token(value):
        raise TypeError(name)
    return value or ""
