# SPDX-License-Identifier: Apache-2.0
"""Formats of parts of a packet, shared by several output formats and other packages. Must not know: the output formats."""
