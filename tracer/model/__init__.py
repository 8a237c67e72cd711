# SPDX-License-Identifier: Apache-2.0
"""Frozen data classes and enums shared by the packages. Must not know: how a value is obtained or shown."""
