/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Loss counters, by CPU. The reader maps them and so reads them without a system call (tracer/kernel/loss_counters.py).
 * Programs of one CPU may interrupt each other between reading and writing a counter; the counted events are rare. */

#define COUNTER_KINDS 32
#define COUNTER_ROWS 80
#define MOST_ROWS 128 /* a power of two, at least COUNTER_ROWS */
#define PACKETS_SHED 31
#define OPENINGS_SHED 30
#define FAILURES_SHED 29

struct loss_counters {
    u64 lost[COUNTER_KINDS];    /* events lost because the ring was full, by enum event_kind; last: shed packets,
                                   see ring.h and skb_tracking.h */
    u64 kept[COUNTER_ROWS];     /* calls with arguments kept for the return probe, by row of the probe table */
    u64 returned[COUNTER_ROWS]; /* kept calls with an observed return, by row of the probe table */
    u64 nested[COUNTER_ROWS];   /* calls for which the second program of a row was skipped, and that the first one handled */
    u64 unhandled[COUNTER_ROWS]; /* calls while a pair of programs replaced the single one: no program may have handled them */
};

BPF_F_TABLE("array", int, struct loss_counters, loss_counters, CPUS, BPF_F_MMAPABLE);

static __always_inline struct loss_counters *loss_counters_here(void)
{
    int cpu = bpf_get_smp_processor_id();
    return loss_counters.lookup(&cpu);
}

static __always_inline void count_lost(u8 kind)
{
    struct loss_counters *t = loss_counters_here();
    if (t)
        t->lost[kind & (COUNTER_KINDS - 1)]++;
}

static __always_inline void count_nested(u32 row)
{
    struct loss_counters *t = loss_counters_here();
    if (t && row < COUNTER_ROWS)
        t->nested[row]++;
}

static __always_inline void count_unhandled(u32 row)
{
    struct loss_counters *t = loss_counters_here();
    if (t && row < COUNTER_ROWS)
        t->unhandled[row]++;
}

static __always_inline void count_kept(u32 row)
{
    struct loss_counters *t = loss_counters_here();
    if (t && row < COUNTER_ROWS)
        t->kept[row]++;
}

static __always_inline void count_returned(u32 row)
{
    struct loss_counters *t = loss_counters_here();
    if (t && row < COUNTER_ROWS)
        t->returned[row]++;
}
