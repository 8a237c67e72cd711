# SPDX-License-Identifier: Apache-2.0
"""Replaces names and addresses in records by pseudonyms. Must not know: how records are shown."""
