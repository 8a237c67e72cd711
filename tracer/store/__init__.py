# SPDX-License-Identifier: Apache-2.0
"""Results of many nodes on an object storage, as Parquet: writing, compaction, reading, and queries on several engines.

Must not know: the format of a capture file, how packets are traced, how results are printed.
"""
