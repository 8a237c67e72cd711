# SPDX-License-Identifier: Apache-2.0
"""Output formats. Each file of this package is one format, found by its file name; its `FORMAT` is the class.

`base` defines the interface of a format. Files with a leading underscore are helpers, not formats.

Must not know: the kernel, bcc, capture files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracer.util.registry import Registry

if TYPE_CHECKING:
    from tracer.render.base import Output

_FORMATS: Registry[type[Output]] = Registry(__name__, "FORMAT", helpers=("base",), kind="output format")
FORMATS = _FORMATS.names()
"""The names of all formats, for `find`."""


def require(name: str) -> None:
    """Raises BadOption for an unknown format. Imports none."""
    _FORMATS.require(name)


def find(name: str) -> type[Output]:
    """Returns the class of a format. Raises BadOption for an unknown name."""
    return _FORMATS.find(name)
