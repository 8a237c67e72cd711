# SPDX-License-Identifier: Apache-2.0
"""Location of the C source: `bpf/` beside the package in a checkout, inside the package when installed."""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def directory() -> Path:
    """The directory of tracer.c and its headers."""
    installed = _PACKAGE / "bpf"
    return installed if installed.is_dir() else _PACKAGE.parent / "bpf"


def read(name: str) -> str:
    """The text of one file of `bpf/`."""
    return (directory() / name).read_text(encoding="utf-8")


_INCLUDE = re.compile(r'^#include "([\w./]+)"$', re.M)


def whole(name: str, generated: dict[str, str]) -> str:
    """The text of a file with its #include lines replaced by the included files.

    bcc rewrites map calls in the main text only; a file that it includes from disk is compiled unchanged and fails to load.
    #line directives keep the line numbers of compiler messages correct.

    Args:
        name: File of `bpf/`.
        generated: Texts of the files generated at start, by name.
    """
    lines = []
    for number, line in enumerate((generated.get(name) or read(name)).splitlines(), 1):
        found = _INCLUDE.match(line)
        if found:
            lines.append(whole(found[1], generated) + f'#line {number + 1} "bpf/{name}"')
        else:
            lines.append(line)
    return f'#line 1 "bpf/{name}"\n' + "\n".join(lines) + "\n"
