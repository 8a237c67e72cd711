# SPDX-License-Identifier: Apache-2.0
"""What would happen to a packet: the way it would take through this node, told in advance by its rules and routes."""
