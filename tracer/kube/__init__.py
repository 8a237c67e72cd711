# SPDX-License-Identifier: Apache-2.0
"""Objects of the Kubernetes API, and the owner of a rule, an address or a port.

Must not know: how packets are caught or shown, the kernel.
"""
