# SPDX-License-Identifier: Apache-2.0
"""One verdict for every SYN: what became of it, and from which evidence that is known.

attempts.py joins a SYN with what answered it, causes/ has a file for each cause, counters.py compares with what the kernel
itself counted. docs/syns.md lists the causes.
"""
