# SPDX-License-Identifier: Apache-2.0
"""Output formats. A format is one file of this package, found by its name; its class is named FORMAT there.

`base` says what a format does. Files whose name begins with an underscore help formats and are none.

Must not know: the kernel, bcc, capture files.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tracer.errors import BadOption
from tracer.render.base import Output

FORMATS = tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base" and m.name[0] != "_" and not m.ispkg))
"""Names for `find`, and for the choice of a command-line option."""


def find(name: str) -> type[Output]:
    """The class of a format. Raises BadOption when there is none of that name."""
    if name not in FORMATS:
        raise BadOption(f"There is no output format {name!r}: choose one of {', '.join(FORMATS)}.")
    found: type[Output] = import_module(f"{__name__}.{name}").FORMAT
    return found
