# SPDX-License-Identifier: Apache-2.0
"""A machine for Vagrant: its packages, and the description that the Vagrantfile reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab import box, guestfiles, host, kernels, packages, qemu


def test_a_box_has_the_packages_of_the_lab_and_more() -> None:
    for suite in ("bookworm", "trixie", "sid"):
        assert set(packages.for_suite(suite)) < set(packages.for_box(suite))
    assert {"openssh-server", "sudo", "rsync", "systemd-sysv", "udev"} <= set(packages.for_box("sid"))


def test_the_description_for_the_vagrantfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K8SNET_BOX_DIR", str(tmp_path / "boxes"))
    description = box.describe(kernels.find("6.1"))
    assert description["built"] is False and description["box"] == f"file://{tmp_path}/boxes/6.1.box"
    assert (description["driver"], description["cpu"]) == ("qemu", qemu.CPU), "no kernel image, so KVM was not tried"
    options = str(description["options"]).split()
    assert options[:2] == ["root=/dev/vda", "rw"] and "net.ifnames=0" in options and "mitigations=off" in options
    assert [o for o in options if o.startswith("panic=")] == ["panic=10"], "time for a user to read the panic message"
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes/6.1.box").touch()
    assert box.describe(kernels.find("6.1"))["built"] is True


def test_a_boxs_initrd_begins_with_its_own_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = tmp_path / "modules"
    (modules / "kernel").mkdir(parents=True)
    (modules / "kernel/virtio_blk.ko").write_bytes(b"a module")
    (modules / "modules.dep").write_text("kernel/virtio_blk.ko:\n")
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"static")
    monkeypatch.setattr(host, "static_busybox", lambda: busybox)
    data = box.initrd(modules)
    assert b"switch_root /new /sbin/init" in data and b"a module" in data and b"virtio_blk.ko\n" in data


@pytest.mark.parametrize("command", box.COMMANDS)
def test_commands_find_the_tree_they_are_in(command: str, tmp_path: Path) -> None:
    """Also through a symbolic link in another directory, as in a box."""
    (tmp_path / command).symlink_to(guestfiles.GUEST / "bin" / command)
    ran = subprocess.run([tmp_path / command, "--help"], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0 and command.rstrip("s") in ran.stdout.lower(), ran.stderr
