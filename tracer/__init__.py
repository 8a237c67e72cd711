# SPDX-License-Identifier: Apache-2.0
"""k8snet-trace: what a Kubernetes node really does to a packet."""

__version__ = "0.1.0"
