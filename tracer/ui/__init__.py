# SPDX-License-Identifier: Apache-2.0
"""The full-screen view of a run (command `ui`): connections, the path of a packet, findings.

The run works in a thread of its own and writes to a bounded queue (feed.py). The screen takes from it a few times a second,
keeps a bounded number of packets (kept_connections.py) and draws only the visible lines.

Must not know: how packets are caught, assembled or explained, the capture file.
"""
