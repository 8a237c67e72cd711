# SPDX-License-Identifier: Apache-2.0
"""Writes captures. Must not know: how a capture is read back."""
