# SPDX-License-Identifier: Apache-2.0
"""The edge to the kernel: BTF, the probe table, compiling, attaching, the ring buffer. The only place that imports bcc.

Must not know: what a packet means, rules, Kubernetes.
"""
