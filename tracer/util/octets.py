# SPDX-License-Identifier: Apache-2.0
"""Conversion of bytes from the kernel and from tools to str, and back. Names of chains, interfaces and processes are bytes, not
always UTF-8.

Bytes that are not UTF-8 become lone surrogates (PEP 383). So different names stay different, and names from a blob, from
netlink and from a tool's output can be compared. tracer/util/escape.py makes them printable.
"""

from __future__ import annotations


def decoded(raw: bytes | bytearray) -> str:
    """Decodes any bytes."""
    return raw.decode("utf-8", "surrogateescape")


def c_text(raw: bytes | bytearray) -> str:
    """Decodes the bytes before the first zero byte."""
    return decoded(bytes(raw).split(b"\0", 1)[0])


def encoded(text: str) -> bytes:
    """Reverses `decoded`. Lone surrogates that `decoded` does not make become "?"."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
