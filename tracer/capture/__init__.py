# SPDX-License-Identifier: Apache-2.0
"""Captures: the inputs of a run in one SQLite file, to be replayed later on any machine. docs/capture.md describes the file.

Must not know: how packets are assembled, explained or shown.
"""
