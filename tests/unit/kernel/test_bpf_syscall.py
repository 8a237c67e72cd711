# SPDX-License-Identifier: Apache-2.0
"""bpf(2) on this machine's kernel: maps and small programs. Attaching needs probes: tests/kernel."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from tracer.kernel import bpf_syscall
from tracer.kernel.bpf_syscall import BpfMap, MapDefinition, ProgramTarget, Refused, map_definition, object_name

RETURN_ZERO = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
HASH, ARRAY, LPM = 1, 2, 11


def made(definition: MapDefinition) -> BpfMap:
    """The map; skips the test where bpf(2) is not allowed."""
    try:
        return BpfMap(definition)
    except OSError as e:
        pytest.skip(f"no bpf(2) here: {e.strerror}")


@pytest.fixture
def hosts() -> Iterator[BpfMap]:
    found = made(MapDefinition("hosts", LPM, 8, 1, 4, 1))
    yield found
    found.close()


def host(last: int) -> bytes:
    return struct.pack("<I", 32) + bytes([10, 0, 0, last])


def test_keys_are_set_and_removed(hosts: BpfMap) -> None:
    assert hosts.keys() == []
    for last in range(3):
        hosts[host(last)] = b"\1"
    assert sorted(hosts.keys()) == [host(0), host(1), host(2)]
    del hosts[host(1)]
    assert sorted(hosts.keys()) == [host(0), host(2)]
    with pytest.raises(FileNotFoundError):
        del hosts[host(1)]


def test_a_full_map_takes_no_more(hosts: BpfMap) -> None:
    for last in range(4):
        hosts[host(last)] = b"\1"
    with pytest.raises(OSError, match="No space left"):
        hosts[host(4)] = b"\1"


def test_a_value_is_read(hosts: BpfMap) -> None:
    hosts[host(1)], hosts[host(2)] = b"\1", b"\2"
    assert (hosts[host(1)], hosts[host(2)]) == (b"\1", b"\2")
    with pytest.raises(FileNotFoundError):
        hosts[host(3)]


def test_a_map_has_the_definition_that_it_was_made_from() -> None:
    for definition in (
        MapDefinition("a_map", HASH, 4, 16, 32, 0),
        MapDefinition("array", ARRAY, 4, 8, 3, 1024),
        MapDefinition("a_name_that_is_longer_than_the_kernel_keeps", ARRAY, 4, 8, 3, 0),
    ):
        found = made(definition)
        assert map_definition(definition.name, found.fd) == definition
        found.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(found.fd)


def test_names_as_the_kernel_accepts_them() -> None:
    assert object_name("nf_hook_slow") == b"nf_hook_slow"
    assert object_name("kretfunc-ä.part.0 of x") == b"kretfunc__.part"


NOT_OPEN = 0x7FFFFFFF
"""A number that is no descriptor of this process."""


def test_a_program_is_loaded_or_refused() -> None:
    made(MapDefinition("rights", ARRAY, 4, 4, 1, 0)).close()
    target = ProgramTarget(bpf_syscall.KPROBE)
    try:
        program = bpf_syscall.load_program("on_hook", RETURN_ZERO, "GPL", target)
    except Refused as e:
        pytest.skip(f"no programs here: {e.strerror}")
    counters = bpf_syscall.MissCounters([program, NOT_OPEN, program])
    assert counters.read() == counters.read() == [0, 0, 0] and bpf_syscall.run_time(program) == (0, 0)
    os.close(program)
    with pytest.raises(Refused) as refused:
        bpf_syscall.load_program("on_hook", RETURN_ZERO[:8], "GPL", target)
    assert refused.value.errno and "insn" in refused.value.log


def test_a_module_that_does_not_exist_has_no_btf() -> None:
    with pytest.raises(OSError):
        bpf_syscall.module_btf("no_such_module")
