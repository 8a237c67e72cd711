# SPDX-License-Identifier: Apache-2.0
"""A Vagrant box for libvirt, made from Debian packages only: the lab's own root and kernel, with packages for the log-in. For
hosts without KVM, and without access to the public boxes.

A box contains the disk; kernel and initrd are in the same directory, because libvirt boots them directly. The user
libvirt-qemu, which runs the machines, can read all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from . import accel, cpio, guestfiles, host, kernelimage, packages, qemu, rootfs
from .kernels import Kernel

RECIPE = 1
"""Number to raise when a change of the code below changes the contents of a box."""

INITRD_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4")
INSECURE_KEY = "keys/vagrant.pub"
"""The public key of every base box; it is part of Vagrant."""

NETWORK = "[Match]\nName=e*\n[Network]\nDHCP=ipv4\nIPv6AcceptRA=no\n[DHCPv4]\nClientIdentifier=mac\n"
PATIENCE = "[Manager]\nDefaultTimeoutStartSec=600s\nDefaultDeviceTimeoutSec=600s\n"
"""Long time-outs of systemd, because emulated machines are slow."""
MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "systemd-networkd-wait-online.service"),
)
OPTIONS = (
    *("root=/dev/vda", "rw", "net.ifnames=0", "fsck.mode=skip", "systemd.show_status=0"),
    *(option for option in qemu.KERNEL_OPTIONS if not option.startswith("panic=")),
    "panic=10",
)
COMMANDS = ("k8snet-trace", "incident")
"""Programs of vagrant/lab/guest/bin that are in a user's PATH."""
SYNCED = "/vagrant"


def directory() -> Path:
    """The directory of the boxes."""
    return Path(os.environ.get("K8SNET_BOX_DIR", "/var/lib/libvirt/k8snet-trace"))


def describe(kernel: Kernel) -> dict[str, object]:
    """The values that the Vagrantfile reads. built: whether the box exists; driver: kvm, or qemu for emulation."""
    where, built = directory(), kernelimage.image(kernel).path.exists()
    chosen = accel.choose(kernel) if built else None
    kvm = chosen is not None and chosen.name == "kvm"
    options = qemu.clock_options(chosen) if chosen else []
    return {
        "built": (where / f"{kernel.name}.box").exists(),
        "box": f"file://{where / kernel.name}.box",
        "kernel": str(where / f"{kernel.name}.vmlinux"),
        "initrd": str(where / f"{kernel.name}.initrd"),
        "options": " ".join([*OPTIONS, *options]),
        "cpu": "host" if kvm else qemu.CPU,
        "driver": "kvm" if kvm else "qemu",
    }


def build(kernel: Kernel) -> Path:
    """Builds the box of a kernel and returns its path; host.LabError if a step fails."""
    if os.geteuid() != 0:
        raise host.LabError("building a box needs root: run it with sudo")
    host.require(host.BUILD_TOOLS + host.BOX_TOOLS)
    image = kernelimage.image(kernel).ensure()
    key = insecure_key()
    where = directory()
    where.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".box-", dir=where) as name:
        scratch = Path(name)
        log, root = scratch / "log", scratch / "root"
        host.run(rootfs.mmdebstrap(kernel.userspace, root, packages.for_box(kernel.userspace)), log=log, env={"APT_CONFIG": ""})
        rootfs.furnish(root)
        modules = add_modules(root, image, log)
        furnish(root, key, log)
        rootfs.make_ext4(root, scratch / "disk", spare_mb=1024, log=log)
        made = pack(kernel, scratch, log)
        for path, data in (
            (where / f"{kernel.name}.vmlinux", (image / kernelimage.KERNEL).read_bytes()),
            (where / f"{kernel.name}.initrd", initrd(modules)),
        ):
            path.write_bytes(data)
            path.chmod(0o644)
        return made.rename(where / f"{kernel.name}.box")


def insecure_key() -> Path:
    """The path of Vagrant's public key; host.LabError without Vagrant."""
    places = (Path("/usr/share"), Path("/opt/vagrant"))
    found = [path for place in places for path in sorted(place.glob(f"**/gems/vagrant-*/{INSECURE_KEY}"))]
    if not found:
        raise host.LabError("missing vagrant: apt-get install --no-install-recommends vagrant vagrant-libvirt")
    return found[-1]


def add_modules(root: Path, image: Path, log: Path) -> Path:
    """Copies the kernel's modules into the root; returns their directory."""
    release = (image / kernelimage.RELEASE).read_text().strip()
    modules = root / "usr/lib/modules" / release
    modules.mkdir(parents=True)
    host.run(["debugfs", "-R", f"rdump / {modules}", str(image / kernelimage.MODULES)], log=log)
    shutil.rmtree(modules / "lost+found", ignore_errors=True)
    return modules


def initrd(modules: Path) -> bytes:
    """An initrd with busybox, the modules for the disk, and the first program."""
    init = cpio.file("init", (guestfiles.GUEST / "init-box").read_bytes(), 0o755)
    return kernelimage.initrd(modules, INITRD_MODULES, [init])


def furnish(root: Path, key: Path, log: Path) -> None:
    """Adds the user vagrant with the insecure key and sudo, a network and the commands; disables timers."""
    host.run(["chroot", str(root), "useradd", "-m", "-s", "/bin/bash", "vagrant"], log=log)
    home = root / "home/vagrant/.ssh"
    home.mkdir(mode=0o700)
    shutil.copy(key, home / "authorized_keys")
    (home / "authorized_keys").chmod(0o600)
    host.run(["chroot", str(root), "chown", "-R", "vagrant:", "/home/vagrant/.ssh"], log=log)
    for name, text in {
        "etc/sudoers.d/vagrant": "vagrant ALL=(ALL) NOPASSWD: ALL\n",
        "etc/ssh/sshd_config.d/box.conf": "UseDNS no\n",
        "etc/systemd/network/10-box.network": NETWORK,
        "etc/systemd/system.conf.d/box.conf": PATIENCE,
        "etc/machine-id": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "etc/sudoers.d/vagrant").chmod(0o440)
    host.run(["chroot", str(root), "systemctl", "-q", "enable", "systemd-networkd"], log=log)
    for unit in MASKED:
        (root / "etc/systemd/system" / unit).unlink(missing_ok=True)
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    for command in COMMANDS:
        (root / "usr/local/bin" / command).symlink_to(f"{SYNCED}/vagrant/lab/guest/bin/{command}")
    host.run(["chroot", str(root), "python3", "-m", "compileall", "-q", "/usr/lib/python3"], log=log)


def pack(kernel: Kernel, scratch: Path, log: Path) -> Path:
    """Makes the box: a tar archive of the disk, its metadata and a Vagrantfile."""
    disk, result = scratch / "disk", scratch / f"{kernel.name}.box"
    gigabytes = -(-disk.stat().st_size // 2**30)
    host.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(disk), str(scratch / "box.img")], log=log)
    (scratch / "metadata.json").write_text(json.dumps({"provider": "libvirt", "format": "qcow2", "virtual_size": gigabytes}))
    (scratch / "Vagrantfile").write_text('Vagrant.configure("2") { |config| config.vm.provider :libvirt }\n')
    with tarfile.open(result, "w") as archive:
        for name in ("metadata.json", "Vagrantfile", "box.img"):
            archive.add(scratch / name, name)
    return result
