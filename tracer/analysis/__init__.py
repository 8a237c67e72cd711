# SPDX-License-Identifier: Apache-2.0
"""Questions about a whole capture: statistics, what differs between two, tables for SQL."""
