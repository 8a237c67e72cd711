# SPDX-License-Identifier: Apache-2.0
"""Findings as Events of Kubernetes (events.k8s.io/v1), for `agent --events`.

Must not know: how packets are caught or explained, metrics, other outputs.
"""
