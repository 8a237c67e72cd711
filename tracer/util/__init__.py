# SPDX-License-Identifier: Apache-2.0
"""General tools, independent of packets, rules and Kubernetes. Must not know: every other package."""
