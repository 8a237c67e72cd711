# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies: the names that programs give their chains, interfaces and sets, and what the policies allow.

Must not know: packets, how rules are read.
"""
