# SPDX-License-Identifier: Apache-2.0
"""Identities of traces and spans. They follow from what is traced, so that a replay gives the same ones."""

from __future__ import annotations

import hashlib

from opentelemetry.sdk.trace.id_generator import IdGenerator


def trace_id(node: str, boot: str, connection: int, began: int) -> int:
    """The identity of the trace of a connection.

    Args:
        node: Name of the node.
        boot: Identity of its boot.
        connection: Number of the connection in its run.
        began: Time of its first packet in the trace, ns, CLOCK_MONOTONIC. Two runs number their connections from 1 on.
    """
    return _number(16, node, boot, connection, began)


def span_id(trace: int, packet: int, began: int) -> int:
    """The identity of the span of a packet. packet: its number. began: its time, ns, CLOCK_MONOTONIC."""
    return _number(8, trace, packet, began)


def _number(size: int, *parts: object) -> int:
    """A number of some bytes that is not 0."""
    text = repr(parts).encode(errors="backslashreplace")
    return int.from_bytes(hashlib.sha256(text).digest()[:size], "big") or 1


class GivenIdentities(IdGenerator):
    """Gives the library the identities that were computed.

    Attributes:
        trace: Identity of the trace of the next span, if it is the first one of its trace.
        span: Identity of the next span.
    """

    def __init__(self) -> None:
        self.trace = self.span = 1

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span
