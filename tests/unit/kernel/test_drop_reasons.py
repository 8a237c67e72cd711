# SPDX-License-Identifier: Apache-2.0
"""Names of drop reasons: of the kernel, and of modules that describe their own."""

from __future__ import annotations

from pathlib import Path

from tests.support.builders import BtfBuilder
from tracer.kernel.btf import KernelTypes
from tracer.kernel.kallsyms import Symbols
from tracer.kernel.session import Kernel

CORE = {"SKB_NOT_DROPPED_YET": 0, "SKB_DROP_REASON_NO_SOCKET": 2}
SUBSYSTEMS = {
    "SKB_DROP_REASON_SUBSYS_CORE": 0,
    "SKB_DROP_REASON_SUBSYS_MAC80211_UNUSABLE": 1,
    "SKB_DROP_REASON_SUBSYS_OPENVSWITCH": 3,
    "SKB_DROP_REASON_SUBSYS_NUM": 4,
}
OVS = {"__OVS_DROP_REASON": 196608, "OVS_DROP_LAST_ACTION": 196609, "OVS_DROP_EXPLICIT": 196611, "OVS_DROP_MAX": 196620}
BASE = {0: "SKB_NOT_DROPPED_YET", 2: "NO_SOCKET"}
KNOWN = {**BASE, 65536: "MAC80211_UNUSABLE", 196608: "OPENVSWITCH"}


def names(folder: Path, built_in: bool = False, module: bool = False) -> dict[int, str]:
    vmlinux = BtfBuilder()
    vmlinux.enum("skb_drop_reason", CORE)
    vmlinux.enum("skb_drop_reason_subsys", SUBSYSTEMS)
    if built_in:
        vmlinux.enum("ovs_drop_reason", OVS)
    (folder / "vmlinux").write_bytes(vmlinux.blob())
    if module:
        own = BtfBuilder(vmlinux)
        own.enum("ovs_drop_reason", OVS)
        (folder / "openvswitch").write_bytes(own.blob())
    return Kernel(KernelTypes(folder), Symbols([]), "6.12").drop_reasons()


def test_of_a_module(tmp_path: Path) -> None:
    found = names(tmp_path, module=True)
    assert found == {**KNOWN, 196609: "OVS_DROP_LAST_ACTION", 196611: "OVS_DROP_EXPLICIT"}


def test_of_open_vswitch_built_in(tmp_path: Path) -> None:
    assert names(tmp_path, built_in=True)[196611] == "OVS_DROP_EXPLICIT"


def test_without_the_module_the_subsystem_is_known(tmp_path: Path) -> None:
    assert names(tmp_path) == KNOWN
