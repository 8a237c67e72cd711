# SPDX-License-Identifier: Apache-2.0
"""Timelines: all packets of one connection, in both directions, with what happened to the connection between them.

tracker.py joins packets, conntrack_events.py hears what conntrack does to its entries, change_log.py keeps what was replaced
meanwhile. docs/syns.md says how a connection is known again behind its translations.

Must not know: how packets are caught or shown.
"""
