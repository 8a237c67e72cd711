# SPDX-License-Identifier: Apache-2.0
"""Cgroups with eBPF programs, and sockets that belong to them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scenes.netns import entered
from tests.kernel.watching import Watch
from tests.support import bpf_programs
from tests.support.bpf_programs import TestProgram
from tracer.model.hop import DetailHop
from tracer.model.packet import Packet

CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def cgroup(path: str) -> Iterator[Path]:
    """A cgroup; sockets that are made in the block belong to it."""
    made = CGROUPS / path
    made.mkdir()
    try:
        yield made
    finally:
        made.rmdir()


def made_in(directory: Path, netns: str | None, kind: int = socket.SOCK_DGRAM, family: int = socket.AF_INET) -> socket.socket:
    """A socket that belongs to a cgroup: it stays in that of the process that made it."""
    (directory / "cgroup.procs").write_text(str(os.getpid()))
    try:
        with entered(netns):
            return socket.socket(family, kind)
    finally:
        (CGROUPS / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def at_cgroup(directory: Path, attach_type: int, *programs: TestProgram | int) -> Iterator[None]:
    links = [bpf_programs.attach_at(directory, program, attach_type) for program in programs]
    try:
        yield
    finally:
        for link in links:
            os.close(link)


def has_cgroups(watch: Watch) -> bool:
    """Whether the kernel gives the cgroup of a socket."""
    return watch.kernel.types.vmlinux.field("sock", "sk_cgrp_data.cgroup") is not None


def needs_cgroups(watch: Watch) -> None:
    if not has_cgroups(watch):
        pytest.skip("this kernel's BTF does not give the cgroup of a socket")


def facts_of(packet: Packet) -> list[dict[str, int | str]]:
    """What the packet shows of a connect() or sendmsg()."""
    return [dict(h.detail.facts) for h in packet.hops if isinstance(h, DetailHop) and h.detail.what == "connect"]
