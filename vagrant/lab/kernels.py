# SPDX-License-Identifier: Apache-2.0
"""The kernels the lab can boot: one row each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """A kernel series, where its packages come from, and the user space it is run with."""

    name: str
    """The series, as given to --kernel."""
    suite: str
    """Debian suite of the kernel packages."""
    userspace: str
    """Debian suite of everything else in the guest."""
    security: bool = False
    """Take the kernel from the suite's security archive too: the version that nodes really run."""


KERNELS = (
    # bullseye's own bcc is older than 0.26, the oldest that is supported; so 5.10 runs under bookworm.
    Kernel("5.10", suite="bullseye", userspace="bookworm"),
    Kernel("6.1", suite="bookworm", userspace="bookworm", security=True),
    Kernel("6.12", suite="trixie", userspace="trixie"),
    Kernel("7.2", suite="sid", userspace="sid"),
)

DEFAULT_BUILD = ("6.1", "6.12")
"""What `lab build` builds when not told."""


def names() -> list[str]:
    """Every series there is, oldest first."""
    return [kernel.name for kernel in KERNELS]


def find(name: str) -> Kernel:
    """The row of that series; KeyError if there is none."""
    for kernel in KERNELS:
        if kernel.name == name:
            return kernel
    raise KeyError(name)
