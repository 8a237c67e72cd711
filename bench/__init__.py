# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: the cost of tracing for the traffic, the rate at which events are read, the time of a start.

`python3 bench/run.py` boots one virtual machine and runs all benchmarks in it: only ratios of neighbouring runs are meaningful.
No test measures times; these figures are for docs/performance.md.
"""
