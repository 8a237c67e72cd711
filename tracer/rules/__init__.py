# SPDX-License-Identifier: Apache-2.0
"""Rules: what decided about a packet, read from the node and never written to it."""
