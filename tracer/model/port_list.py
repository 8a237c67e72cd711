# SPDX-License-Identifier: Apache-2.0
"""Lists of ports as users type them: "80,443,30000-32767"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tracer.errors import BadOption

_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def parse_ports(texts: Iterable[str], option: str = "--port") -> tuple[int, ...]:
    """Parses lists of ports and ranges.

    Args:
        texts: The values of an option; each one is a list with commas.
        option: The option, for the error.

    Returns:
        All ports, sorted, each one once.

    Raises:
        BadOption: A text is no list of ports, or a port does not exist.
    """
    return tuple(sorted({port for text in texts for part in text.split(",") for port in _ports(part, text, option)}))


def _ports(part: str, text: str, option: str) -> Iterator[int]:
    found = _PART.fullmatch(part.strip())
    if not found or not found[0].isascii():
        raise BadOption(f"{option} {text!r} is no list of ports: write 80, 80,443 or 30000-32767.")
    first, last = int(found[1]), int(found[2] or found[1])
    for port in (first, last):
        if not 0 < port < 65536:
            raise BadOption(f"Port {port} does not exist: ports go from 1 to 65535.")
    if first > last:
        raise BadOption(f"{option} {part.strip()!r} is no range: the first port is higher than the last one.")
    yield from range(first, last + 1)
