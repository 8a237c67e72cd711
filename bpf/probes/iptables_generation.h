/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Generations of a legacy table's rules: the rule blob that a reader got, and the time when a blob came into force.
 *
 * Every user of a table (iptables, iptables-save, this program) looks it up first and then reads the rules in force at that
 * time: xt_find_table_lock holds the lock until they have been copied. So a reader knows from its own look-ups which rule blob
 * it has read, and from the replacements how long that address was valid for these rules. */

_Static_assert(sizeof(struct table_generation) == SHORT_EVENT, "one slot");
_Static_assert(__builtin_offsetof(struct table_generation, kind) == __builtin_offsetof(struct event, kind), "kind");

#ifdef HAVE_xt_table
static __always_inline struct table_generation *reserve_generation(struct xt_table *table)
{
    struct table_generation *out = events.ringbuf_reserve(sizeof(struct table_generation));

    if (!out) {
        count_lost(EVENT_RULESET);
        return 0;
    }
    count_written(sizeof(*out));
    __builtin_memset(out, 0, sizeof(*out));
    out->time = bpf_ktime_get_ns();
    out->object = (u64)PEEK(table, private);
    out->thread = bpf_get_current_pid_tgid();
    out->kind = EVENT_RULESET;
    out->hook = NO_HOOK;
    bpf_probe_read_kernel(&out->table, sizeof(out->table), &table->name);
    return out;
}

/* arg: namespace, family; returns the table, or an error as pointer */
static __always_inline int table_found_keep(struct call *c)
{
    return 1;
}

static __always_inline int table_found_returned(struct call *c)
{
    struct net *net = (void *)c->arg[0];
    struct table_generation *out;

    if (!c->ret || c->ret > -4096ULL)
        return 0;
    out = reserve_generation((void *)c->ret);
    if (!out)
        return 0;
    out->netns = PEEK(net, ns_inum);
    out->pf = c->arg[1];
    events.ringbuf_submit(out, BPF_RB_NO_WAKEUP);
    return 0;
}
PROBE_RETURN(table_found)

/* arg: table; returns the blob that was replaced, NULL = no replacement */
static __always_inline int table_replaced_keep(struct call *c)
{
    return 1;
}

static __always_inline int table_replaced_returned(struct call *c)
{
    struct table_generation *out;

    if (!c->ret)
        return 0;
    out = reserve_generation((void *)c->arg[0]);
    if (!out)
        return 0;
    out->before = c->ret;
    events.ringbuf_submit(out, BPF_RB_NO_WAKEUP);
    return 0;
}
PROBE_RETURN(table_replaced)
#endif
