# SPDX-License-Identifier: Apache-2.0
"""The sending side of the agent protocol: the results of a run on this node as frames, on the credit of a client.

Must not know: bcc, the Kubernetes API, how results are printed.
"""
