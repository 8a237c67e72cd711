# SPDX-License-Identifier: Apache-2.0
"""The table of kernels, and the package lists of their suites."""

from __future__ import annotations

import pytest

from lab import kernels, packages


def test_kernel_rows_are_complete() -> None:
    assert kernels.names() == ["5.10", "6.1", "6.12", "7.2"]
    assert set(kernels.DEFAULT_BUILD) <= set(kernels.names())
    for name in kernels.names():
        row = kernels.find(name)
        assert row.suite
        assert row.userspace
    with pytest.raises(KeyError):
        kernels.find("2.6")


@pytest.mark.parametrize("suite", sorted({kernel.userspace for kernel in kernels.KERNELS}))
def test_package_lists(suite: str) -> None:
    names = packages.for_suite(suite)
    assert len(names) == len(set(names))
    assert {"python3-bpfcc", "iptables", "nftables", "mount", "passwd"} <= set(names)
    assert ("pwru" in names) == (suite in ("trixie", "sid"))
    assert not [name for name in names if name.startswith("linux-")], "the tracer must work without headers"
