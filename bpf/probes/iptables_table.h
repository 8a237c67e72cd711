/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* iptables tables: ipt_do_table and ip6t_do_table run one table of one hook and return its verdict. */

#ifdef HAVE_xt_table
/* arg: skb, state, table */
static __always_inline int table_keep(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    return !in_negative_cache(c, READ(c, skb, _nfct));
}

/* The nat table has none of its own: 0. */
static __always_inline s32 priority_of_table(struct call *c, struct xt_table *table, struct xt_table *copy)
{
#ifdef HAVE_xt_table_priority
    return CAN_LOAD(c) ? LOAD_FIELD(c, table, priority) : copy->priority;
#else
    return UNKNOWN_PRIORITY;
#endif
}

/* Returns the CPU on which the table ran. */
static __always_inline int write_table(struct call *c, u64 nfct, int cpu)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct nf_hook_state *state = (void *)c->arg[1];
    struct xt_table *table = (void *)c->arg[2]; /* not to be dereferenced */
    struct xt_table copy;                       /* with the helper, one call costs less than one for each field */
    u8 verdict = c->ret & 255;
    struct tracked_skb *e;
    struct hook_step step;
    struct reserved r;
    struct run *run;
    int from;
    struct observation *s;

    s = observation_of(c);
    step = observe_hook(c, skb, state, READ(c, state, pf), nfct, 0, s);
    if (!s || step.unwanted)
        return cpu;
    if (!CAN_LOAD(c) && bpf_probe_read_kernel(&copy, sizeof(copy), table))
        return cpu;
    e = track_in_hook(c, skb, state, step, priority_of_table(c, table, &copy), s);
    if (!e || (verdict != NF_DROP && drops_only_excludes(e, s->nfct)))
        return cpu;
    run = end_run(c->arg[0], cpu);
    if (!run) {
        from = moved_from(c->arg[0], c->arg[2]);
        if (from < CPUS) {
            cpu = from;
            run = end_run(c->arg[0], cpu);
        }
    }
    r = begin_hook_event(c, e, EVENT_TABLE, skb, s, state);
    if (!r.out)
        return cpu;
    r.out->verdict = verdict;
    if (verdict == NF_DROP)
        write_rejection(r.out, c->arg[0], cpu);
    r.out->manip = connection_bits(c, s->nfct);
    if (CAN_LOAD(c)) {
        r.out->object = (u64)LOAD_FIELD(c, table, private);
        copy_words(c, (u64 *)r.out->table, sizeof(r.out->table), (u64)&table->name);
    } else {
        r.out->object = (u64)copy.private;
        __builtin_memcpy(r.out->table, copy.name, sizeof(r.out->table));
    }
    write_steps(run, r.out);
    r.out->state |= e->emitted.shape << STEPS_SHAPE;
    submit_event(r);
    return cpu;
}

static __always_inline int table_returned(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    u8 verdict = c->ret & 255;
    int cpu = bpf_get_smp_processor_id();

    if (verdict != NF_STOLEN) {
        u64 nfct = READ(c, skb, _nfct);

        if (in_negative_cache(c, nfct))
            return 0; /* so the program at its entry has not begun a run */
        cpu = write_table(c, nfct, cpu);
    }
    free_run(c->arg[0], cpu);
    return 0;
}

#define table4_keep table_keep
#define table4_returned table_returned
#define table6_keep table_keep
#define table6_returned table_returned
PROBE_RETURN(table4)
PROBE_RETURN(table6)
#endif
