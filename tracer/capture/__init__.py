# SPDX-License-Identifier: Apache-2.0
"""Captures: a run's inputs in one SQLite file, to be explained later, on any machine. docs/capture.md describes the file.

Must not know: how packets are assembled, explained or shown.
"""
