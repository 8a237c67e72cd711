/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is counted, by CPU: the reader maps this and sees every number without asking the kernel (tracer/kernel/loss_counters.py).
 * Programs of one CPU may interrupt each other between reading and writing; what they count is rare. */

#define COUNTER_KINDS 32
#define COUNTER_ROWS 64
#define PACKETS_SHED 31

struct loss_counters {
    u64 lost[COUNTER_KINDS];    /* events that found no room, by enum event_kind; the last: whole packets, see ring.h */
    u64 kept[COUNTER_ROWS];     /* calls whose arguments were kept for their return, by row of the probe table */
    u64 returned[COUNTER_ROWS]; /* of those, the ones that were seen to return */
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
