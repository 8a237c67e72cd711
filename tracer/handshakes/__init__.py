# SPDX-License-Identifier: Apache-2.0
"""One verdict for every SYN: what became of it, and from which evidence that is known.

correlator.py joins a SYN with its answer, causes/ has a file for each cause, counter_check.py compares with the kernel's own
counters. docs/syns.md lists the causes.

Must not know: how packets are caught or shown, connections.
"""
