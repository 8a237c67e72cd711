# SPDX-License-Identifier: Apache-2.0
"""The guest's Debian root: an ext4 image made by mmdebstrap. Each boot writes to a snapshot of it."""

from __future__ import annotations

import os
from pathlib import Path

from . import cache, host, packages

RECIPE = 1
"""Number to raise when a change of the code below changes the contents of the image."""

EXCLUDE = tuple(f"/usr/share/{name}/*" for name in ("man", "doc", "locale", "info", "bash-completion"))

MOUNT_POINTS = ("mnt/share", "usr/lib/modules", "usr/src")

# Explicit: a newer e2fsprogs would add features that 5.10 cannot mount. No journal: writes are discarded.
FEATURES = "none,filetype,extent,dir_index,sparse_super,large_file,extra_isize,flex_bg"


def image(suite: str) -> cache.Image:
    """The root image of a suite."""
    key = cache.digest(RECIPE, suite, packages.for_suite(suite), EXCLUDE, MOUNT_POINTS, FEATURES)
    return cache.Image(f"root-{suite}", key, ".ext4", lambda scratch: build(suite, scratch))


def mirror() -> str:
    """The Debian mirror, without the archive's name (/debian, /debian-security)."""
    return os.environ.get("LAB_MIRROR", "http://deb.debian.org").rstrip("/")


def build(suite: str, scratch: Path) -> Path:
    """Make the image in `scratch`; host.LabError if a step fails."""
    if os.geteuid() != 0:
        raise host.LabError("building an image needs root: run `lab build` with sudo")
    host.require(host.BUILD_TOOLS)
    root, log, result = scratch / "root", scratch / "log", scratch / "root.ext4"
    host.run(mmdebstrap(suite, root, packages.for_suite(suite)), log=log, env={"APT_CONFIG": ""})
    furnish(root)
    # Most packages compile their own modules. Without .pyc, importing bcc or rich takes many seconds in the emulator.
    host.run(["chroot", str(root), "python3", "-m", "compileall", "-q", "/usr/lib/python3"], log=log)
    make_ext4(root, result, spare_mb=1024, log=log)
    return result


def mmdebstrap(suite: str, root: Path, names: list[str]) -> list[str]:
    """The command that installs these packages into the directory `root`.

    It runs in separate namespaces: however it ends, no process and no mount below `root` remains.
    """
    return [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=apt",
        "--architectures=amd64",
        "--components=main",
        "--format=directory",
        f"--include={','.join(names)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDE),
        '--aptopt=APT::Install-Recommends "false"',
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=Acquire::Check-Valid-Until "false"',
        suite,
        str(root),
        f"deb {mirror()}/debian {suite} main",
    ]


def furnish(root: Path) -> None:
    """Adds what no package has: mount points, and the configuration of a machine without a network."""
    for point in MOUNT_POINTS:
        (root / point).mkdir(parents=True, exist_ok=True)
    (root / "etc/hostname").write_text("lab\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost lab\n::1 localhost\n")
    for name in ("etc/resolv.conf", "etc/fstab"):
        (root / name).unlink(missing_ok=True)
        (root / name).touch()


def make_ext4(tree: Path, result: Path, *, spare_mb: int, log: Path) -> None:
    """Makes an ext4 image of `tree` with `spare_mb` MiB free, which use no space on the host."""
    files = size = 0
    for parent, directories, names in os.walk(tree):
        files += len(directories) + len(names)
        size += 4096 * len(directories)
        for name in names:
            size += -(-os.lstat(os.path.join(parent, name)).st_size // 4096) * 4096
    megabytes = size * 105 // 100 // 2**20 + 16 + spare_mb
    inodes = files + 2000 + 20 * spare_mb
    host.run(
        [
            "mke2fs",
            "-q",
            "-t",
            "ext4",
            "-O",
            FEATURES,
            "-b",
            "4096",
            "-m",
            "0",
            "-N",
            str(inodes),
            "-d",
            str(tree),
            str(result),
            f"{megabytes}M",
        ],
        log=log,
    )
