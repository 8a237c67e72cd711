# SPDX-License-Identifier: Apache-2.0
"""The agent protocol: frames between `k8snet-trace agent --stdio` on a node and the client. docs/protocol.md describes it.

Must not know: how packets are made, printed or joined. The other side of a stream is not trusted.
"""
