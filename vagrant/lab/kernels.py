# SPDX-License-Identifier: Apache-2.0
"""The kernels that the lab can boot: one row each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """A kernel series, the origin of its packages, and its user space."""

    name: str
    """The series, as given to --kernel."""
    suite: str
    """Debian suite of the kernel packages."""
    userspace: str
    """Debian suite of everything else in the guest."""
    security: bool = False
    """Also use the suite's security archive for the kernel: the version that real nodes run."""


KERNELS = (
    # bullseye's own bcc is older than 0.26, the oldest supported version; so 5.10 runs with bookworm.
    Kernel("5.10", suite="bullseye", userspace="bookworm"),
    Kernel("6.1", suite="bookworm", userspace="bookworm", security=True),
    Kernel("6.12", suite="trixie", userspace="trixie"),
    Kernel("7.2", suite="sid", userspace="sid"),
)

DEFAULT_BUILD = ("6.1", "6.12")
"""The kernels that `lab build` builds by default."""


def names() -> list[str]:
    """The names of all series, oldest first."""
    return [kernel.name for kernel in KERNELS]


def find(name: str) -> Kernel:
    """The row of that series; KeyError if it does not exist."""
    for kernel in KERNELS:
        if kernel.name == name:
            return kernel
    raise KeyError(name)
