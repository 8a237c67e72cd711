/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The ring buffer of all records. Writing wakes no process: the reader drains the ring by a timer.
 *
 * bcc's tables cannot query the fill level (bpf_ringbuf_query needs the map itself). So the programs count the bytes that they
 * write, and the reader counts the bytes that it drains (tracer/kernel/ring_buffer.py), both with the header of each record. */

BPF_RINGBUF_OUTPUT(events, RING_PAGES);

struct fill {
    u64 written;
    u64 taken;  /* the reader writes this */
    u64 detail; /* enum detail; the reader writes this */
};

/* What is written about packets. A reader that uses more than its budget takes less. A packet keeps the detail of its begin, so
 * none is cut off in its middle. Only with drops_only (filter.h): otherwise nothing says which packets fail. */
enum detail {
    WHOLE = 0,    /* what the filter selects */
    FAILURES = 1, /* without the packets that open connections: of those only the end is written if they fail */
    NOTHING = 2,  /* nothing */
};

BPF_F_TABLE("array", int, struct fill, fills, 1, BPF_F_MMAPABLE);

#define RECORD_HEADER 8

static __always_inline void count_written(u64 bytes)
{
    int zero = 0;
    struct fill *f = fills.lookup(&zero);
    if (f)
        __sync_fetch_and_add(&f->written, bytes + RECORD_HEADER);
}

/* When the reader falls behind, every packet would lose some of its events and be incomplete. So while the ring is nearly full
 * new packets are shed (see core/skb_tracking.h); the last quarter of the ring is for the packets that have begun. */
static __always_inline int nearly_full(void)
{
    int zero = 0;
    struct fill *f = fills.lookup(&zero);
    return f && f->written - f->taken > RING_PAGES * 4096ULL / 4 * 3;
}

static __always_inline u8 detail_in_force(void)
{
    int zero = 0;
    struct fill *f = fills.lookup(&zero);
    return f ? f->detail : WHOLE;
}
