# SPDX-License-Identifier: Apache-2.0
"""The live table of traffic (command `top`): packets, drops, SYNs and times, counted by one property of the packets.

    dimensions.py   what a row stands for: a Service, a rule, ...; one entry each
    row.py          the figures of one row
    interval.py     the rows of one interval, bounded
    packet_counter.py  the sink of the pipeline: counts packets, and gives each interval to a view
    orders.py       how rows are sorted
    columns.py      what the table shows of a row, one entry each
    drawing.py      an interval as lines of text; printing.py and screen.py show them
    interval_record.py  an interval as JSON

Must not know: the format of a capture file, how packets are caught.
"""
