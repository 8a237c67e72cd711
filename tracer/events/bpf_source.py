# SPDX-License-Identifier: Apache-2.0
"""Where the C text lives: `bpf/` beside the package in a checkout, inside the package when installed."""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def directory() -> Path:
    """The directory that holds tracer.c and its headers."""
    installed = _PACKAGE / "bpf"
    return installed if installed.is_dir() else _PACKAGE.parent / "bpf"


def read(name: str) -> str:
    """The text of one file of `bpf/`."""
    return (directory() / name).read_text(encoding="utf-8")


_INCLUDE = re.compile(r'^#include "([\w./]+)"$', re.M)


def whole(name: str, generated: dict[str, str]) -> str:
    """The text of `name` with its #include lines replaced by the files they name.

    bcc rewrites map calls in the main text only: what it includes from disk is compiled as it stands there, and fails to
    load. `generated` are files made at start, by name. #line keeps the compiler's messages true.
    """
    lines = []
    for number, line in enumerate((generated.get(name) or read(name)).splitlines(), 1):
        found = _INCLUDE.match(line)
        if found:
            lines.append(whole(found[1], generated) + f'#line {number + 1} "bpf/{name}"')
        else:
            lines.append(line)
    return f'#line 1 "bpf/{name}"\n' + "\n".join(lines) + "\n"
