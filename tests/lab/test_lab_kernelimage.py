# SPDX-License-Identifier: Apache-2.0
"""The files that are taken from a kernel's packages, and the order in which its modules are loaded."""

from __future__ import annotations

import struct
from pathlib import Path

from lab import host, kernelimage


def test_module_load_order() -> None:
    modules_dep = (
        "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko\n"
        "kernel/fs/jbd2/jbd2.ko:\n"
        "kernel/fs/mbcache.ko:\n"
        "kernel/drivers/virtio-pci.ko: kernel/drivers/virtio.ko\n"
    )
    order = kernelimage.load_order(modules_dep, ("virtio_pci", "built_in", "jbd2", "ext4"))
    assert [Path(path).stem for path in order] == ["virtio", "virtio-pci", "jbd2", "mbcache", "crc16", "ext4"]


def test_kernel_packages_of_one_and_of_several() -> None:
    depends = """\
linux-image-cloud-amd64
  Depends: linux-image-6.1.0-56-cloud-amd64
linux-image-6.1.0-56-cloud-amd64
  Depends: kmod
linux-image-6.1.0-56-cloud-amd64-unsigned
kmod
linux-base
"""
    assert kernelimage.kernel_packages(depends) == ["linux-image-6.1.0-56-cloud-amd64"]
    several = "linux-image-7.2.13+deb14-cloud-amd64\nlinux-modules-7.2.13+deb14-cloud-amd64\nlinux-base\n"
    assert len(kernelimage.kernel_packages(several)) == 2
    assert kernelimage.kernel_packages("") == []


def test_the_files_taken_from_a_kernel_package() -> None:
    take = kernelimage.destination
    assert take("./boot/vmlinuz-6.1.0") == "vmlinuz"
    assert take("./usr/lib/modules/7.2/vmlinuz") == "vmlinuz"
    assert take("./lib/modules/6.1/kernel/net/x.ko.xz") == "lib/modules/6.1/kernel/net/x.ko.xz"
    assert take("./usr/lib/modules/7.2/modules.order") == "lib/modules/7.2/modules.order"
    for name in ("./boot/System.map-6.1.0", "./lib/modules/6.1/build", "./usr/share/doc/x", "./lib/modules/"):
        assert take(name) is None


def test_dynamic_and_static_programs_are_distinguished() -> None:
    def elf(*segments: int) -> bytes:
        header = bytearray(64)
        struct.pack_into("<Q", header, 0x20, 64)
        struct.pack_into("<HH", header, 0x36, 56, len(segments))
        return bytes(header) + b"".join(struct.pack("<I52x", kind) for kind in segments)

    assert host.is_dynamic(elf(1, host.PT_INTERP, 2))
    assert not host.is_dynamic(elf(1, 2))
