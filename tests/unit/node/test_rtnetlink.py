# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of rtnetlink, on this machine's kernel."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from tracer.node import netns
from tracer.node.nfnetlink import attributes, text
from tracer.node.rtnetlink import (
    GETLINK,
    GETQDISC,
    ChangeListener,
    Rtnetlink,
    link_request,
    messages,
    request,
    tc_request,
)

IFNAME = 3


def test_all_links_are_dumped() -> None:
    with Rtnetlink() as route:
        links = route.dump(GETLINK, link_request())
        found = {text(attributes(body[16:])[IFNAME]): struct.unpack_from("=i", body, 4)[0] for body in links}
        assert found == {name: index for index, name in socket.if_nameindex()}
        assert isinstance(route.dump(GETQDISC, tc_request()), list), "a second request on the same socket"


def test_a_refused_request() -> None:
    with Rtnetlink() as route, pytest.raises(OSError):
        route.dump(9999, b"")


def test_damaged_messages_end_the_reading() -> None:
    whole = request(GETLINK, 0, b"12345678")
    assert [body for _, _, body in messages(whole + whole)] == [b"12345678"] * 2
    for damaged in (whole[:-1], whole + b"\0" * 15, whole + b"\0" * 16, whole + struct.pack("=IHHII", 1 << 30, 1, 0, 0, 0)):
        assert len(list(messages(damaged))) == (0 if damaged == whole[:-1] else 1)


def test_our_own_namespace_has_no_number_or_one() -> None:
    fd = netns.current()
    try:
        with Rtnetlink() as route:
            assert route.namespace_number(fd) >= -1
    finally:
        os.close(fd)


def test_nothing_has_changed() -> None:
    listener = ChangeListener()
    try:
        assert listener.read() is not None
    finally:
        listener.close()
