# SPDX-License-Identifier: Apache-2.0
"""Virtual servers, read from /proc/net/ip_vs."""

from __future__ import annotations

from pathlib import Path

from tracer.predict.ipvs import VirtualServers

TABLE = """IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  AC1E2107:0CEA rr
  -> 0AF4000B:0CEA      Masq    1      0          0
UDP  [fd00:0172:0030:0000:0000:0000:0000:0053]:0035 rr
"""


def test_virtual_servers(tmp_path: Path) -> None:
    (tmp_path / "ip_vs").write_text(TABLE)
    virtual = VirtualServers(tmp_path)
    assert virtual.real_servers("172.30.33.7", 3306, "tcp") == ("10.244.0.11:3306",)
    assert virtual.real_servers("fd00:172:30::53", 53, "udp") == (), "a virtual server without a real server refuses"
    assert virtual.real_servers("172.30.33.7", 3307, "tcp") is None and virtual.real_servers("172.30.33.7", 3306, "udp") is None
    assert virtual.real_servers("10.244.0.11", 3306, "tcp") is None, "a real server is no virtual one"
    assert VirtualServers(tmp_path / "gone").real_servers("172.30.33.7", 3306, "tcp") is None


def test_a_real_server_of_weight_0_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "ip_vs").write_text(TABLE.replace("Masq    1", "Masq    0"))
    assert VirtualServers(tmp_path).real_servers("172.30.33.7", 3306, "tcp") == ()
