# SPDX-License-Identifier: Apache-2.0
"""Kernel, modules and initrd, from Debian's kernel packages. No headers, no System.map."""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from . import bzimage, cache, cpio, host
from .kernels import Kernel
from .rootfs import make_ext4, mirror

RECIPE = 1
"""Number to raise when a change of the code below changes the contents of the images."""

META_PACKAGE = "linux-image-cloud-amd64"
"""The cloud flavour: the same core and netfilter, few drivers, so it boots faster and is smaller."""

INITRD_MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "crc32c_generic", "ext4", "virtiofs")
"""Modules for disks, output ports and the share. Those that a kernel has built in are skipped."""

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

APT_CONF = """\
Dir::Etc::sourcelist "{apt}/sources.list"; Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null"; Dir::State::status "/dev/null";
Dir::State::lists "{apt}/lists"; Dir::Cache "{apt}/cache";
APT::Sandbox::User "root"; APT::Architecture "amd64"; APT::Architectures "amd64";
Acquire::Languages "none"; Acquire::Check-Valid-Until "false";
"""

SKIPPED = ("build", "source", "System.map", "config")
"""Names under lib/modules/RELEASE that the guest must work without."""

KERNEL, MODULES, INITRD, RELEASE = "vmlinux", "modules.ext4", "initrd", "release"
"""The files of a kernel image directory; RELEASE has the output of `uname -r`."""


def image(kernel: Kernel) -> cache.Image:
    """The image directory of a kernel."""
    key = cache.digest(RECIPE, kernel.suite, kernel.security, META_PACKAGE, INITRD_MODULES)
    return cache.Image(f"kernel-{kernel.name}", key, "", lambda scratch: build(kernel, scratch))


def build(kernel: Kernel, scratch: Path) -> Path:
    """Make the image directory in `scratch`; host.LabError if a step fails."""
    host.require(host.BUILD_TOOLS)
    log, tree, result = scratch / "log", scratch / "tree", scratch / "result"
    for deb in download(kernel, scratch, log):
        unpack(deb, tree)
    releases = sorted(path.name for path in (tree / "lib/modules").iterdir())
    if len(releases) != 1 or not (tree / "vmlinuz").exists():
        raise host.LabError(f"unexpected contents of {META_PACKAGE} in {kernel.suite}: {releases}")
    release = releases[0]
    modules = tree / "lib/modules" / release
    decompress(modules)
    host.run(["depmod", "-b", str(tree), release], log=log)

    result.mkdir()
    packed = (tree / "vmlinuz").read_bytes()
    (result / KERNEL).write_bytes(bzimage.vmlinux(packed) or packed)  # QEMU boots both
    (result / INITRD).write_bytes(initrd(modules))
    (result / RELEASE).write_text(release + "\n")
    make_ext4(modules, result / MODULES, spare_mb=0, log=log)
    return result


def download(kernel: Kernel, scratch: Path, log: Path) -> list[Path]:
    """Download the kernel's packages, with an apt state separate from the host's."""
    apt, debs = scratch / "apt", scratch / "debs"
    for path in (apt / "lists/partial", apt / "cache/archives/partial", debs):
        path.mkdir(parents=True)
    archives = [f"{mirror()}/debian {kernel.suite}"]
    if kernel.security:
        archives.append(f"{mirror()}/debian-security {kernel.suite}-security")
    sources = "".join(f"deb [signed-by={KEYRING}] {archive} main\n" for archive in archives)
    (apt / "sources.list").write_text(sources)
    (apt / "apt.conf").write_text(APT_CONF.format(apt=apt))
    env = {"APT_CONFIG": str(apt / "apt.conf")}
    host.run(["apt-get", "-qq", "update"], log=log, env=env)
    depends = subprocess.run(
        ["apt-cache", "depends", "--recurse", "--important", META_PACKAGE],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    names = kernel_packages(depends.stdout)
    if not names:
        raise host.LabError(f"{kernel.suite} has no {META_PACKAGE}: {depends.stderr.strip()}")
    host.run(["apt-get", "-qq", "download", *names], log=log, env=env, cwd=debs)
    return sorted(debs.glob("*.deb"))


def kernel_packages(depends: str) -> list[str]:
    """The packages with a kernel version in their name, from the output of `apt-cache depends --recurse`.

    Kernel and modules were one package (linux-image-); sid has several (linux-binary-, linux-modules-).
    """
    found = set(re.findall(r"^(linux-(?:image|binary|modules|base)-\S*\d\.\d\S*)$", depends, re.MULTILINE))
    return sorted(name for name in found if "unsigned" not in name and "dbg" not in name)


def unpack(deb: Path, tree: Path) -> None:
    """Extract the needed files of a package into `tree`, to the paths that `destination` returns."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                target = destination(member.name)
                if target is not None:
                    member.name = target
                    archive.extract(member, tree)
    if process.returncode != 0:
        raise host.LabError(f"{deb.name}: dpkg-deb failed with status {process.returncode}")


def destination(member: str) -> str | None:
    """The target path of a kernel package's file: vmlinuz, lib/modules/..., None = not needed."""
    parts = PurePosixPath(member).parts
    if parts[:1] == ("usr",):  # since Debian merged /usr, the packages have the files here
        parts = parts[1:]
    if parts and parts[-1].startswith("vmlinuz"):
        return "vmlinuz"
    if parts[:2] != ("lib", "modules") or len(parts) < 3 or (len(parts) > 3 and parts[3] in SKIPPED):
        return None
    return str(PurePosixPath(*parts))


def decompress(modules: Path) -> None:
    """Decompress every .ko.xz to .ko: under emulation modprobe is then much faster."""

    def one(path: Path) -> None:
        path.with_suffix("").write_bytes(lzma.decompress(path.read_bytes()))
        path.unlink()

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # lzma releases the interpreter lock
        list(pool.map(one, modules.rglob("*.ko.xz")))


def initrd(modules: Path, names: tuple[str, ...] = INITRD_MODULES, more: Sequence[cpio.Entry] = ()) -> bytes:
    """The part of the initrd that is equal at every boot: busybox, the first modules and their order; and `more` entries."""
    order = load_order((modules / "modules.dep").read_text(), names)
    return cpio.archive(
        [
            *more,
            *(cpio.directory(name) for name in ("bin", "modules", "proc", "sys", "dev", "new")),
            cpio.file("bin/busybox", host.static_busybox().read_bytes(), 0o755),
            cpio.symlink("bin/sh", "busybox"),
            *(cpio.file(f"modules/{PurePosixPath(path).name}", (modules / path).read_bytes()) for path in order),
            cpio.file("modules/order", "".join(f"{PurePosixPath(path).name}\n" for path in order).encode()),
        ]
    )


def load_order(modules_dep: str, names: tuple[str, ...]) -> list[str]:
    """Paths of the named modules and all their dependencies, in an order that insmod accepts.

    `modules_dep` is depmod's file: `path: dependency...`; the dependency to load first is the last one.
    """
    needs: dict[str, list[str]] = {}
    for line in modules_dep.splitlines():
        path, _, rest = line.partition(":")
        needs[PurePosixPath(path).name.partition(".")[0].replace("-", "_")] = [*reversed(rest.split()), path]
    order: dict[str, None] = {}
    for name in names:
        order.update(dict.fromkeys(needs.get(name, [])))
    return list(order)
