# SPDX-License-Identifier: Apache-2.0
"""Failed connections as traces and findings as log records for a collector of OpenTelemetry (OTLP), for `agent --otlp`.

The only package that imports the libraries of OpenTelemetry.

Must not know: how packets are caught or explained, metrics, other outputs.
"""
