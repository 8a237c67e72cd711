# SPDX-License-Identifier: Apache-2.0
"""Timelines: all packets of one connection, in both directions, with what happened to the connection between them.

connections.py joins packets, conntrack.py hears what conntrack does to its entries, changes.py what was replaced meanwhile.
docs/syns.md says how a connection is known again behind its translations.
"""
