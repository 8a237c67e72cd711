# SPDX-License-Identifier: Apache-2.0
"""Extracts the ELF kernel from a bzImage. QEMU boots it with PVH, so the emulator does not decompress it."""

from __future__ import annotations

import lzma
import struct
import subprocess

from .host import find

XZ = b"\xfd7zXZ\0"
EXTERNAL = {b"\x28\xb5\x2f\xfd": "zstd", b"\x02\x21\x4c\x18": "lz4"}
"""First bytes of a payload -> the program that unpacks it (Python 3.11 has no module for these)."""


def vmlinux(image: bytes) -> bytes | None:
    """The uncompressed kernel, None if `image` is no bzImage or has an unknown compression.

    Offsets are those of Documentation/arch/x86/boot.rst, boot protocol 2.08 and later.
    """
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        return None
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start : start + length - 4]  # the last four bytes are the uncompressed size
    kernel = _unpack(payload)
    return kernel if kernel is not None and kernel.startswith(b"\x7fELF") else None


def _unpack(payload: bytes) -> bytes | None:
    if payload.startswith(XZ):
        return lzma.decompress(payload)
    program = find(EXTERNAL.get(payload[:4], ""))
    if program is None:
        return None
    done = subprocess.run([program, "-dcqq"], input=payload, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None
