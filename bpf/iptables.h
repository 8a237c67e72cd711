/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* iptables tables: ipt_do_table and ip6t_do_table run one table of one hook and return its verdict. */

#ifdef HAVE_xt_table
/* arg: skb, state, table */
static __always_inline int table_keep(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    return !known_unwanted(READ(c, skb, _nfct));
}

static __always_inline int write_table(struct call *c, struct run *run)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct nf_hook_state *state = (void *)c->arg[1];
    struct xt_table *table = (void *)c->arg[2];
    u8 verdict = c->ret & 255;
    struct follow *e;
    struct reserved r;
    struct sight *s;

    if (verdict == NF_STOLEN || known_unwanted(READ(c, skb, _nfct)))
        return 0;
    s = sight_of(c);
    e = follow_in_hook(c, skb, state, 0, s);
    if (!e || (verdict != NF_DROP && only_ends(e, s->nfct)))
        return 0;
    r = begin_hook_event(c, e, EVENT_TABLE, skb, s, state);
    if (!r.out)
        return 0;
    r.out->verdict = verdict;
    if (verdict == NF_DROP)
        write_rejection(r.out, c->arg[0]);
    r.out->object = (u64)PEEK(table, private);
    bpf_probe_read_kernel(&r.out->table, sizeof(r.out->table), &table->name);
    write_steps(run, r.out);
    r.out->state |= e->told.shape << STEPS_SHAPE;
    submit_event(r);
    return 0;
}

static __always_inline int table_returned(struct call *c)
{
    write_table(c, end_run(c->arg[0]));
    free_run(c->arg[0]);
    return 0;
}

#define table4_keep table_keep
#define table4_returned table_returned
#define table6_keep table_keep
#define table6_returned table_returned
PROBE_RETURN(table4)
PROBE_RETURN(table6)
#endif
