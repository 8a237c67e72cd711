# SPDX-License-Identifier: Apache-2.0
"""The generation of the own namespace comes from one socket; another namespace is never asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.node import netns
from tracer.rules.nftables import own_generation
from tracer.rules.nftables.own_generation import OwnGeneration

OWN = Path("/proc/self/ns/net").stat().st_ino


class Socket:
    """A socket that answers with a generation, or fails. made: all of them."""

    made: list[Socket]

    def __init__(self) -> None:
        self.is_open, self.fails = True, False
        self.made.append(self)

    def get(self, message: int) -> tuple[int, int, bytes]:
        if self.fails:
            raise OSError(105, "No buffer space available")
        return 15, 0, b"\x08\x00\x01\x00\x00\x00\x00\x07"

    def close(self) -> None:
        self.is_open = False


@pytest.fixture(autouse=True)
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[Socket]:
    monkeypatch.setattr(own_generation, "Nfnetlink", Socket)
    Socket.made = []
    return Socket.made


def test_one_socket_answers_each_time(sockets: list[Socket]) -> None:
    own = OwnGeneration()
    assert [own.of(netns.identity(OWN, 5)) for _ in range(3)] == [7, 7, 7]
    assert len(sockets) == 1
    own.close()
    assert not sockets[0].is_open


def test_another_namespace_is_not_asked(sockets: list[Socket]) -> None:
    assert OwnGeneration().of(OWN + 1) == 0 and not sockets


def test_after_an_error_there_is_a_new_socket(sockets: list[Socket]) -> None:
    own = OwnGeneration()
    own.of(OWN)
    sockets[0].fails = True
    assert own.of(OWN) == 0 and not sockets[0].is_open
    assert own.of(OWN) == 7 and len(sockets) == 2
