# SPDX-License-Identifier: Apache-2.0
"""Small tools without any knowledge of packets, rules or Kubernetes. Must not know: every other package."""
