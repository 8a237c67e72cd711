# SPDX-License-Identifier: Apache-2.0
"""The bytes of the ring buffer as typed events, laid out by bpf/records.

Must not know: how events were captured, what they mean together.
"""
