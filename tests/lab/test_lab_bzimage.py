# SPDX-License-Identifier: Apache-2.0
"""The kernel inside a bzImage."""

from __future__ import annotations

import lzma
import shutil
import struct
import subprocess

import pytest

from lab import bzimage


def bzimage_like(payload: bytes, size: int) -> bytes:
    """A file with a bzImage's header (two set-up sectors) around a payload that unpacks to `size` bytes."""
    header = bytearray(3 * 512)
    header[0x1F1] = 2
    header[0x202:0x206] = b"HdrS"
    code = b"\x90" * 100  # the unpacking code, with bytes in it that look like a payload
    code += b"\x28\xb5\x2f\xfd"
    struct.pack_into("<II", header, 0x248, len(code), len(payload) + 4)
    return bytes(header) + code + payload + struct.pack("<I", size) + b"the next bytes"


ELF = b"\x7fELF" + bytes(range(256)) * 300


@pytest.mark.parametrize("packer", ["xz", "zstd", "lz4"])
def test_vmlinux_out_of_a_bzimage(packer: str) -> None:
    if packer == "xz":
        payload = lzma.compress(ELF, check=lzma.CHECK_CRC32)
    elif shutil.which(packer) is None:
        pytest.skip(f"no {packer} here")
    else:
        options = {"zstd": ["-qc"], "lz4": ["-qcl"]}[packer]  # the kernel uses lz4's legacy format
        payload = subprocess.run([packer, *options], input=ELF, stdout=subprocess.PIPE, check=True).stdout
    assert bzimage.vmlinux(bzimage_like(payload, len(ELF))) == ELF


def test_no_vmlinux_in_other_files() -> None:
    assert bzimage.vmlinux(b"") is None
    assert bzimage.vmlinux(ELF) is None
    assert bzimage.vmlinux(bzimage_like(b"unknown format", 9)) is None
    assert bzimage.vmlinux(bzimage_like(lzma.compress(b"no ELF file"), 11)) is None
