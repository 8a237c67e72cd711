# SPDX-License-Identifier: Apache-2.0
"""Reads captures and answers from them in place of the machine. Must not know: how a capture is written."""
