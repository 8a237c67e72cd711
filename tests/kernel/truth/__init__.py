# SPDX-License-Identifier: Apache-2.0
"""Ground truth: what the kernel's own trace says of random rules and random packets, beside what the tracer says.

    legacy, nft, nftables    a file for each back end of rules
    run, packets             legacy: the rounds, and random packets; the kernel tells by its log
    compare, trace, senders  nftables: the same; the kernel tells by netlink

tests/kernel/ground_truth.py runs them from the command line.
"""
