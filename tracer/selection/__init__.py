# SPDX-License-Identifier: Apache-2.0
"""Which assembled packets are shown: conditions on a packet. It does not know how packets were caught, explained or shown."""
