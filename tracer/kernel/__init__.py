# SPDX-License-Identifier: Apache-2.0
"""The interface to the kernel: BTF, probe table, compiling, attaching, ring buffer. The only package that imports bcc.

Must not know: what a packet means, rules, Kubernetes.
"""
