# SPDX-License-Identifier: Apache-2.0
"""The version of the agent protocol, and the bounds that both sides keep."""

from __future__ import annotations

VERSION = 1
"""Version of the protocol. Added fields and frame kinds keep it; what an older peer would misunderstand raises it."""
PREAMBLE = b"k8snet-trace agent stream\n"
"""The first bytes that an agent writes, before the compressed frames."""
MOST_BODY_BYTES = 4 << 20
"""Largest body of a frame, bytes."""
MOST_CLIENT_BODY_BYTES = 64 << 10
"""Largest body of a frame that a client sends, bytes."""
MOST_TEMPLATES = 128
"""Number of packet templates that each side keeps, for one stream."""
MOST_TEMPLATE_BYTES = 4 << 20
"""Most bytes of the bodies of these templates together, but one template is always kept."""
MOST_LEAVES = 1 << 15
"""Largest number of values in one tree."""
MOST_ITEMS = 1 << 14
"""Largest number of items of one list, and of fields of one object."""
MOST_DEPTH = 24
"""Largest depth of a tree."""
MOST_TEXT = 64 << 10
"""Longest text in a tree, characters."""
LEASE_SECONDS = 15.0
"""Time without a frame of the client after which an agent removes its probes and ends, s."""
PING_SECONDS = 1.0
"""Interval of the client's pings, s."""
CREDIT_FRAMES = 4096
"""Frames that an agent may send before it needs more credit: the client's window."""
