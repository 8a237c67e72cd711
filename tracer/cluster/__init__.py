# SPDX-License-Identifier: Apache-2.0
"""A run on several nodes: which nodes, an agent on each of them by kubectl, and one stream of their results.

Must not know: how packets are made; the kernel.
"""
