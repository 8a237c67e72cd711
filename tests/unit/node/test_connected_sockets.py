# SPDX-License-Identifier: Apache-2.0
"""The sockets with a peer, from /proc/net."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.node import procnet
from tracer.node.procnet import ConnectedSocket, connected

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(own: str, peer: str, state: str, inode: int) -> str:
    return f"   0: {own} {peer} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 2 0000000 0\n"


def test_listeners_and_other_ports_are_left_out(tmp_path: Path) -> None:
    rows = [
        row("00000000:7662", "00000000:0000", "0A", 1), row("0A38A8C0:7662", "0138A8C0:2329", "02", 2),
        row("0A38A8C0:7663", "0138A8C0:2329", "01", 3), row("0A38A8C0:7662", "0138A8C0:232A", "06", 0),
    ]  # fmt: skip
    (tmp_path / "tcp").write_text(HEAD + "".join(rows))
    mapped = "0000000000000000FFFF00000A38A8C0"
    (tmp_path / "tcp6").write_text(HEAD + row(f"{mapped}:7662", f"{mapped}:0050", "01", 5))
    node = "192.168.56.10"
    assert connected(tmp_path, "tcp", 30306) == (
        ConnectedSocket(node, 30306, "192.168.56.1", 9001, 2),
        ConnectedSocket(node, 30306, "192.168.56.1", 9002, 0),
        ConnectedSocket(node, 30306, node, 80, 5),
    )
    assert connected(tmp_path, "udp", 30306) == () == connected(tmp_path, "../tcp", 30306)


def test_unconnected_sockets_of_udp_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "udp").write_text(HEAD + row("00000000:7662", "00000000:0000", "07", 1) + "damaged\n")
    assert connected(tmp_path, "udp", 30306) == ()


def test_their_number_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procnet, "MOST_CONNECTED", 3)
    (tmp_path / "tcp").write_text(HEAD + "".join(row("0A38A8C0:7662", f"0138A8C0:{n:04X}", "01", n + 1) for n in range(9)))
    assert [s.peer_port for s in connected(tmp_path, "tcp", 30306)] == [0, 1, 2]
