# SPDX-License-Identifier: Apache-2.0
"""The machines of a cluster, without booting: their clocks, their interfaces, QEMU's command line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from lab import cluster, qemu
from lab.cluster import Member
from lab.qemu import Accel, Nic, Wires
from tests.lab.test_lab_qemu import MACHINE, values

NICS = (Nic("52:54:00:60:01:0a", 14), Nic("52:54:00:60:01:ff"))
WIRES = Wires(10, (11, 12), Path("/t/console"), None, commands=13, nics=NICS)


def test_each_interface_and_the_commands_have_a_socket() -> None:
    argv = qemu.command_line(MACHINE, WIRES)
    assert values(argv, "-netdev") == ["dgram,id=net0,local.type=fd,local.str=14", "user,id=net1"]
    devices = values(argv, "-device")
    assert "virtio-net-pci,netdev=net0,mac=52:54:00:60:01:0a,romfile=" in devices
    assert "virtserialport,chardev=commands,name=commands" in devices
    assert "socket,id=commands,fd=13" in values(argv, "-chardev")
    assert WIRES.inherited == [10, 11, 12, 13, 14]


def test_a_single_machine_has_no_interface_and_the_hosts_clock() -> None:
    argv = qemu.command_line(MACHINE, Wires(10, (11, 12), Path("/t/console"), None))
    assert not {"-netdev", "-rtc"} & set(argv) and "commands" not in " ".join(argv)


def test_clocks_are_apart_and_run_at_different_speeds() -> None:
    request = cluster.request(Member("node-a", "6.12", clock_seconds=-3600, clock_ppm=200), Accel("tcg", 2_000_000))
    shown = datetime.strptime(request.rtc, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    assert 3590 < (datetime.now(UTC) - shown).total_seconds() < 3610
    assert request.accel.tsc_khz == 2_000_000 - 400
    assert (request.cpus, request.memory) == (1, cluster.MEMORY)
    argv = qemu.command_line(qemu.Machine(**{**vars(MACHINE), "rtc": request.rtc}), WIRES)
    assert values(argv, "-rtc") == [f"base={request.rtc},clock=vm"]


def test_addresses_of_interfaces_are_different() -> None:
    assert len({cluster.mac(number, last) for number in range(1, 4) for last in (0x0A, 0xFF)}) == 6
