# SPDX-License-Identifier: Apache-2.0
"""The options that select packets: what the kernel gets of them, and conditions on assembled packets.

Must not know: how packets are caught, explained or shown.
"""
