# SPDX-License-Identifier: Apache-2.0
"""The metrics of the always-on agent: what happens to packets, counted in bounded label sets and served for Prometheus.

    families/          a metric a file, found by the name of the file
    family.py          what each of them can do
    label_sets.py      the label sets of one metric: the most frequent ones, and `other`
    label_value.py     text of others as the value of a label
    metric_sources.py  what metrics are made of beside the results of the run
    metric_book.py     all metrics of a run, and the lock between its thread and those that serve them
    metrics_output.py  the sink of the pipeline, which counts the results of the run
    exposition.py      the metrics for the library prometheus_client
    health.py          whether the agent is ready, and whether it is alive
    endpoint.py        the HTTP server

Must not know: how packets are caught, the format of a capture file, how results are printed.
"""
