/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The ring that every record goes to. Nobody is woken: the reader comes by timer and drains all there is.
 *
 * How full it is, bcc's tables cannot ask (bpf_ringbuf_query wants the map itself). So the programs count what they write, and
 * the reader what it has taken out (tracer/kernel/ring_buffer.py), in bytes with the header of each record. */

BPF_RINGBUF_OUTPUT(events, RING_PAGES);

struct fill {
    u64 written;
    u64 taken; /* the reader writes this */
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

/* When the reader falls behind, each packet would lose some of its events, and none could be told whole. So while the ring is
 * nearly full new packets are left out (see core/skb_tracking.h), and its last quarter is for those that are under way. */
static __always_inline int nearly_full(void)
{
    int zero = 0;
    struct fill *f = fills.lookup(&zero);
    return f && f->written - f->taken > RING_PAGES * 4096ULL / 4 * 3;
}
