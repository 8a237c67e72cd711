/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Writes the steps of a table's run into the ring after the table has returned. */

#if RULE_STEPS
/* Writes the first fields of a table trace record, common to both sizes. */
static __always_inline void write_run(struct table_trace *out, struct run *r, struct event *table, u32 first)
{
    out->time = table->time;
    out->packet = table->packet;
    out->object = r->private;
    out->netns = table->netns;
    out->mark = r->mark;
    out->count = r->count;
    out->first = first;
    out->hotdrop = HOTDROP_SEEN(r);
    out->hop = table->hop;
    out->kind = EVENT_STEPS;
    out->flags = table->flags;
    out->hook = table->hook;
    out->pf = table->pf;
    out->spare_2[0] = out->spare_2[1] = 0;
    bpf_probe_read_kernel(out->jumps, sizeof(out->jumps), r->jumps);
    bpf_probe_read_kernel(out->steps_1, sizeof(out->steps_1), &r->steps[first]);
}

/* Writes one table trace record with the steps from number `first` on. If the ring is full it is counted as lost. */
static __always_inline void write_record(struct run *r, struct event *table, u32 first)
{
    struct table_trace *out = events.ringbuf_reserve(sizeof(struct table_trace));

    if (!out) {
        count_lost(EVENT_STEPS);
        return;
    }
    count_written(sizeof(*out));
    write_run(out, r, table, first);
    out->joint1 = 0;
    out->joint2 = 0;
    bpf_probe_read_kernel(out->steps_2, sizeof(out->steps_2), &r->steps[first + 4]);
    bpf_probe_read_kernel(out->steps_3, sizeof(out->steps_3), &r->steps[first + 28]);
    events.ringbuf_submit(out, BPF_RB_NO_WAKEUP);
}

static __always_inline void write_short_record(struct run *r, struct event *table)
{
    struct table_trace *out = events.ringbuf_reserve(SHORT_EVENT);

    if (!out) {
        count_lost(EVENT_STEPS);
        return;
    }
    count_written(SHORT_EVENT);
    write_run(out, r, table, 0);
    events.ringbuf_submit(out, BPF_RB_NO_WAKEUP);
}

/* 1 if the status of the packet's connection is another one than when the run began. */
static __always_inline int status_changed(struct run *r, struct event *table)
{
    return (u8)r->connection >> TABLE_STATUS != table->manip >> TABLE_STATUS;
}

/* Writes the steps of the run, and into the table's event the number of records. */
static __always_inline void write_steps(struct run *r, struct event *table)
{
    if (!r)
        return;
    table->state = STEPS_WATCHED | (r->private != table->object ? STEPS_REPLACED : 0) |
                   (status_changed(r, table) ? STEPS_STATUS_CHANGED : 0);
    if (!r->count && r->mark == table->mark)
        return;
    table->state += 1;
    if (r->count <= STEPS_IN_SHORT) {
        write_short_record(r, table);
        return;
    }
    write_record(r, table, 0);
    if (r->count > STEPS_IN_RECORD) {
        table->state += 1;
        write_record(r, table, STEPS_IN_RECORD);
    }
}
#else
struct run {
    u64 private;
};
static __always_inline struct run *end_run(u64 skb, int cpu)
{
    return 0;
}
static __always_inline void free_run(u64 skb, int cpu)
{
}
static __always_inline int moved_from(u64 skb, u64 table)
{
    return CPUS;
}
static __always_inline void write_steps(struct run *r, struct event *table)
{
}
#endif
