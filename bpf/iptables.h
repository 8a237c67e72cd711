/* iptables tables: ipt_do_table and ip6t_do_table run one table of one hook and return its verdict. */

/* arg: skb, state, table */
static __always_inline int table_keep(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    return !known_unwanted(c->arg[0], READ(c, skb, _nfct));
}

static __always_inline int table_returned(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct nf_hook_state *state = (void *)c->arg[1];
    struct xt_table *table = (void *)c->arg[2];
    u8 verdict = c->ret & 255;
    struct follow *e;
    struct event *out;
    struct sight *s;
    struct run *run = end_run(c->arg[0]);

    if (verdict == NF_STOLEN || known_unwanted(c->arg[0], READ(c, skb, _nfct)))
        return 0;
    s = sight_of(c);
    e = follow_in_hook(c, skb, state, 0, s);
    if (!e || (verdict != NF_DROP && only_drops()))
        return 0;
    out = reserve_event(e, EVENT_TABLE, c->arg[0]);
    if (!out)
        return 0;
    write_sight(c, out, skb, s);
    write_state(c, out, state);
    out->pf = READ(c, state, pf);
    out->verdict = verdict;
    if (verdict == NF_DROP)
        write_rejection(out, c->arg[0]);
    out->object = (u64)PEEK(table, private);
    bpf_probe_read_kernel(&out->table, sizeof(out->table), &table->name);
    write_steps(run, out);
    submit_event(out);
    return 0;
}

#define table4_keep table_keep
#define table4_returned table_returned
#define table6_keep table_keep
#define table6_returned table_returned
PROBE_RETURN(table4)
PROBE_RETURN(table6)
