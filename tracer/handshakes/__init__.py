# SPDX-License-Identifier: Apache-2.0
"""One verdict for every SYN: its result, and the evidence for it.

correlator.py joins a SYN with its answer, causes/ has one file per cause, counter_check.py compares with the kernel's own
counters. docs/syns.md lists the causes.

Must not know: how packets are caught or shown, connections.
"""
