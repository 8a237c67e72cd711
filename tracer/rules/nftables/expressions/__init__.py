# SPDX-License-Identifier: Apache-2.0
"""Expressions of nftables rules: decodes what the kernel sends of each, by a row. Must not know: chains, tables, packets."""
