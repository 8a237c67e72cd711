/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Packets that conntrack drops: full table, lost race.
 *
 * Full table: nf_conntrack_alloc calls early_drop to evict an entry; if that fails the packet is dropped there, on this CPU. So
 * the probe of early_drop stores the time, and the next drop on the CPU, shortly after, is that packet, unless another process
 * has run on the CPU since.
 *
 * Lost race: __nf_conntrack_confirm finds the tuple in the table, inserted by another CPU since this packet was looked up, and
 * returns NF_DROP. */

#define FULL_TABLE_NS 20000000ULL

struct full_table {
    u64 when; /* ns, CLOCK_MONOTONIC; 0 = the table was not full */
    u64 task;
};
BPF_PERCPU_ARRAY(full_tables, struct full_table, 1);

/* arg: namespace; returns whether it evicted an entry */
static __always_inline int table_full_keep(struct call *c)
{
    return 1;
}

static __always_inline int table_full_returned(struct call *c)
{
    int zero = 0;
    struct full_table *note = full_tables.lookup(&zero);

    if (note) {
        note->when = c->ret & 255 ? 0 : bpf_ktime_get_ns();
        note->task = bpf_get_current_task();
    }
    return 0;
}
PROBE_RETURN(table_full)

/* Called for every drop: 1 if the table was full. Resets the stored time, which is valid for one drop. */
static __always_inline int take_full_table(void)
{
    int zero = 0;
    struct full_table *note = full_tables.lookup(&zero);
    u64 noted;

    if (!note || !note->when || note->task != bpf_get_current_task())
        return 0;
    noted = note->when;
    note->when = 0;
    return bpf_ktime_get_ns() - noted < FULL_TABLE_NS;
}

static __always_inline void write_full_table(struct tracked_skb *e)
{
    struct decision_detail *out = reserve_detail(e, DETAIL_TABLE_FULL);

    if (out)
        submit_detail(out);
}

/* arg: skb; returns a verdict */
static __always_inline int confirm_keep(struct call *c)
{
    return find_tracked(c->arg[0]) != 0;
}

static __always_inline int confirm_returned(struct call *c)
{
    struct tracked_skb *e;
    struct decision_detail *out;

    if ((c->ret & 255) != NF_DROP)
        return 0;
    e = find_tracked(c->arg[0]);
    if (!e || e->dead)
        return 0;
    out = reserve_detail(e, DETAIL_CONFIRM);
    if (out)
        submit_detail(out);
    return 0;
}
PROBE_RETURN(confirm)
