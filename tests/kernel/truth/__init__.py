# SPDX-License-Identifier: Apache-2.0
"""Ground truth: the kernel's own trace of random packets through random rules, compared with the tracer's result.

    legacy, nft, nftables    one file for each back end of rules
    run, packets             legacy: the rounds, and random packets; the kernel reports in its log
    compare, trace, senders  nftables: the same; the kernel reports by netlink

tests/kernel/ground_truth.py runs them from the command line.
"""
