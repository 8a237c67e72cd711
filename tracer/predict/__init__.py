# SPDX-License-Identifier: Apache-2.0
"""The path that a packet would take through this node, predicted from its rules and routes; the command is `explain`.

Must not know: how packets are caught, how a path is shown.
"""
