# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' words: the objects of the API, and whose a rule, an address or a port is."""
