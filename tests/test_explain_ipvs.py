"""Virtual servers, as /proc/net/ip_vs has them."""

from __future__ import annotations

from pathlib import Path

from tracer.explain.ipvs import Virtual

TABLE = """IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  AC1E2107:0CEA rr
  -> 0AF4000B:0CEA      Masq    1      0          0
UDP  [fd00:0172:0030:0000:0000:0000:0000:0053]:0035 rr
"""


def test_virtual_servers(tmp_path: Path) -> None:
    (tmp_path / "ip_vs").write_text(TABLE)
    virtual = Virtual(tmp_path)
    assert virtual.at("172.30.33.7", 3306, "tcp") and virtual.at("fd00:172:30::53", 53, "udp")
    assert not virtual.at("172.30.33.7", 3307, "tcp") and not virtual.at("172.30.33.7", 3306, "udp")
    assert not virtual.at("10.244.0.11", 3306, "tcp"), "a real server is none"
    assert not Virtual(tmp_path / "gone").at("172.30.33.7", 3306, "tcp")
