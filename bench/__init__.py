# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: what tracing costs the traffic, how fast events are read, how long a start takes.

`python3 bench/run.py` boots one virtual machine and runs everything in it, side by side: only ratios of neighbouring runs
mean anything. No test times anything; these figures are for docs/performance.md.
"""
