# SPDX-License-Identifier: Apache-2.0
"""Analyses of a whole capture: statistics, differences between two captures, tables for SQL.

Must not know: the format of a capture file, the kernel.
"""
