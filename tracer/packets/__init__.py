# SPDX-License-Identifier: Apache-2.0
"""Events of one packet put together: hops, headers, outcome. Must not know: how events were caught, how packets are shown."""
