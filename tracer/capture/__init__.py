# SPDX-License-Identifier: Apache-2.0
"""Captures: a run's inputs in one SQLite file, to be explained later, elsewhere. docs/capture.md tells what is in it."""
