# SPDX-License-Identifier: Apache-2.0
"""Output formats. Each file of this package is one format, found by its file name; its `FORMAT` is the class.

`base` defines the interface of a format. Files with a leading underscore are helpers, not formats.

Must not know: the kernel, bcc, capture files.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

from tracer.errors import BadOption

if TYPE_CHECKING:
    from tracer.render.base import Output

FORMATS = tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base" and m.name[0] != "_" and not m.ispkg))
"""The names of all formats, for `find`."""


def require(name: str) -> None:
    """Raises BadOption for an unknown format. Imports none."""
    if name not in FORMATS:
        raise BadOption(f"There is no output format {name!r}: choose one of {', '.join(FORMATS)}.")


def find(name: str) -> type[Output]:
    """Returns the class of a format. Raises BadOption for an unknown name."""
    require(name)
    found: type[Output] = import_module(f"{__name__}.{name}").FORMAT
    return found
