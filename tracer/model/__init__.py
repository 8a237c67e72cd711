# SPDX-License-Identifier: Apache-2.0
"""Frozen data classes and enums that the packages share. Must not know: how a value was obtained or is shown."""
