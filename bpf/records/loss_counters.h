/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is counted, by CPU: the reader maps this and sees every number without asking the kernel (tracer/kernel/loss_counters.py).
 * Programs of one CPU may interrupt each other between reading and writing; what they count is rare. */

#define TALLY_KINDS 32
#define TALLY_ROWS 64
#define PACKETS_LEFT_OUT 31

struct tally {
    u64 lost[TALLY_KINDS];    /* events that found no room, by enum event_kind; the last: whole packets, see ring.h */
    u64 kept[TALLY_ROWS];     /* calls whose arguments were kept for their return, by row of the probe table */
    u64 returned[TALLY_ROWS]; /* of those, the ones that were seen to return */
};

BPF_F_TABLE("array", int, struct tally, tallies, CPUS, BPF_F_MMAPABLE);

static __always_inline struct tally *tally_here(void)
{
    int cpu = bpf_get_smp_processor_id();
    return tallies.lookup(&cpu);
}

static __always_inline void count_lost(u8 kind)
{
    struct tally *t = tally_here();
    if (t)
        t->lost[kind & (TALLY_KINDS - 1)]++;
}

static __always_inline void count_kept(u32 row)
{
    struct tally *t = tally_here();
    if (t && row < TALLY_ROWS)
        t->kept[row]++;
}

static __always_inline void count_returned(u32 row)
{
    struct tally *t = tally_here();
    if (t && row < TALLY_ROWS)
        t->returned[row]++;
}
