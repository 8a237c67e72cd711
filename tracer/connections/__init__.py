# SPDX-License-Identifier: Apache-2.0
"""Timelines: all packets of one connection, in both directions, and the events of the connection between them.

tracker.py joins packets, conntrack_events.py receives events of conntrack entries, change_log.py collects replaced rules and
objects. docs/syns.md describes how a connection is recognised after its address translations.

Must not know: how packets are caught or shown.
"""
