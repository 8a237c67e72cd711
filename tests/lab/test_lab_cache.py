# SPDX-License-Identifier: Apache-2.0
"""The name of an image depends on its contents; an image is built once, and completely or not at all."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from lab import cache, host, kernelimage, kernels, packages, rootfs
from lab.kernels import Kernel


def test_root_image_is_renamed_when_its_packages_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {suite: rootfs.image(suite).path for suite in ("bookworm", "trixie")}
    assert before == {suite: rootfs.image(suite).path for suite in ("bookworm", "trixie")}
    more = (*packages.PACKAGES, packages.Package("tshark", suites=("trixie",)))
    monkeypatch.setattr(packages, "PACKAGES", more)
    assert rootfs.image("bookworm").path == before["bookworm"]
    assert rootfs.image("trixie").path != before["trixie"]


def test_kernel_image_is_renamed_when_its_definition_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    row = kernels.find("6.1")
    before = kernelimage.image(row).path
    assert kernelimage.image(Kernel("6.1", "bookworm", "bookworm")).path != before  # no security archive
    monkeypatch.setattr(kernelimage, "INITRD_MODULES", ("virtio_pci",))
    assert kernelimage.image(row).path != before


def test_an_image_is_built_once_and_replaces_older_ones(own_cache: Path) -> None:
    built: list[Path] = []

    def build(scratch: Path) -> Path:
        built.append(scratch)
        (scratch / "result").write_text("new")
        return scratch / "result"

    own_cache.mkdir()
    (own_cache / "root-x-0000000000.ext4").write_text("old")
    (own_cache / "root-xy-0000000000.ext4").write_text("another suite's")
    image = cache.Image("root-x", "1111111111", ".ext4", build)
    assert image.ensure().read_text() == "new"
    image.ensure()
    assert len(built) == 1
    assert sorted(path.name for path in own_cache.glob("root-*")) == [
        "root-x-1111111111.ext4",
        "root-xy-0000000000.ext4",
    ]
    assert not built[0].exists()


def test_a_failed_build_leaves_nothing(own_cache: Path) -> None:
    def build(scratch: Path) -> Path:
        (scratch / "half").write_text("")
        raise host.LabError("no network")

    image = cache.Image("root-x", "1", ".ext4", build)
    with pytest.raises(host.LabError, match="no network"):
        image.ensure()
    assert not image.path.exists()
    assert [path.name for path in own_cache.iterdir()] == [".root-x.lock"]


def test_two_builds_at_once_build_once() -> None:
    built: list[int] = []

    def build(scratch: Path) -> Path:
        built.append(1)
        time.sleep(0.1)
        (scratch / "result").mkdir()
        return scratch / "result"

    image = cache.Image("kernel-x", "1", "", build)
    threads = [threading.Thread(target=image.ensure) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert image.path.is_dir()
