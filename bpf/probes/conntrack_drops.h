/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What conntrack has no room for, or loses.
 *
 * A table that is full: nf_conntrack_alloc asks early_drop for room, and when it has none the packet is dropped right there, on
 * this CPU. So early_drop leaves a note, and the next drop on the CPU, a moment later, is that packet, unless another process
 * has been given the CPU since.
 *
 * A race that is lost: __nf_conntrack_confirm finds the tuple in the table, put there by another CPU since this packet was
 * looked up, and says drop. */

#define FULL_TABLE_NS 20000000ULL

struct full_table {
    u64 when; /* 0 = there is no note */
    u64 task;
};
BPF_PERCPU_ARRAY(full_tables, struct full_table, 1);

/* arg: namespace; returns whether it has made room */
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

/* Called for every drop: was it for want of room? The note holds for one. */
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

static __always_inline void tell_full_table(struct tracked_skb *e)
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
