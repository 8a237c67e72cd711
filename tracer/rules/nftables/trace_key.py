# SPDX-License-Identifier: Apache-2.0
"""Turns on the kernel's static key nft_trace_enabled without touching the node's rules.

With the key on, nf_tables calls __nft_trace_packet for every rule that matches, for every packet in every namespace. Without a
listener the function does nothing. Any rule `meta nftrace set 1` turns the key on. Here this rule is in a chain that no packet
reaches, in a table of a network namespace made for it. Only a descriptor of this process refers to that namespace. So the
namespace is removed, and the key turned off, when the process ends for any reason.
"""

from __future__ import annotations

import os
from types import TracebackType

from tracer.node import netns
from tracer.node.nfnetlink import Message, Nfnetlink, attribute

NAME = "k8snet-trace"
_NEWTABLE, _NEWCHAIN, _NEWRULE = 0, 3, 6
_INET = 1
_META_NFTRACE = 12
_REGISTER = 1


def _expression(name: str, *data: bytes) -> bytes:
    return attribute(1, [attribute(1, name), attribute(2, data)])


def _messages() -> list[Message]:
    """table inet k8snet-trace { chain off { meta nftrace set 1 } }"""
    one = attribute(2, [attribute(1, b"\1")])
    rule = [
        _expression("immediate", attribute(1, _REGISTER), one),
        _expression("meta", attribute(2, _META_NFTRACE), attribute(3, _REGISTER)),
    ]
    names = attribute(1, NAME)
    return [
        (_NEWTABLE, _INET, names),
        (_NEWCHAIN, _INET, names + attribute(3, "off")),
        (_NEWRULE, _INET, names + attribute(2, "off") + attribute(4, rule)),
    ]


def _switch_on() -> int:
    with Nfnetlink() as nfnetlink:
        nfnetlink.batch(_messages())
    return netns.current()


class TraceSwitch:
    """Turns the key on until close(); a context manager. Raises OSError if the kernel refuses."""

    def __init__(self) -> None:
        self._fd = netns.inside_new(_switch_on)

    def close(self) -> None:
        """Turns the key off."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> TraceSwitch:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
