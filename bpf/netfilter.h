/* Netfilter hooks: nf_hook_slow runs a hook's functions one after another and returns what they decided.
 *
 * Returned 1: accepted, the packet is alive. Below 0: dropped, it has been freed (skb:kfree_skb told so just before).
 * 0: stolen or queued, it may be anywhere. So only an accepted packet may be looked at here. */

enum { NF_DROP, NF_ACCEPT, NF_STOLEN, NF_QUEUE, NF_REPEAT };

struct hook_state {
    u32 netns;
    u32 in, out;
    u8 hook, pf;
    u8 by_loopback;
};

#define IFF_LOOPBACK 8

/* NFPROTO_IPV4 or NFPROTO_IPV6. A bridge has hooks of its own numbering, through which a packet goes as well. */
static __always_inline int is_ip(u8 pf)
{
    return pf == 2 || pf == 10;
}

static __always_inline void read_state(struct call *c, struct hook_state *to, struct nf_hook_state *state)
{
    struct net_device *in = READ(c, state, in), *out = READ(c, state, out);

    to->hook = READ(c, state, hook);
    to->pf = READ(c, state, pf);
    to->netns = netns_of(c, READ(c, state, net));
    to->in = in ? READ(c, in, ifindex) : 0;
    to->out = out ? READ(c, out, ifindex) : 0;
    to->by_loopback = in && (READ(c, in, flags) & IFF_LOOPBACK);
}

static __always_inline void write_state(struct call *c, struct event *out, struct nf_hook_state *state)
{
    struct net_device *in = READ(c, state, in), *outdev = READ(c, state, out);

    if (in)
        bpf_probe_read_kernel(&out->in_name, sizeof(out->in_name), &in->name);
    if (outdev)
        bpf_probe_read_kernel(&out->out_name, sizeof(out->out_name), &outdev->name);
}

/* The entry of a packet inside a hook (or, with returned = 1, just after). Fills *s. */
static __always_inline struct follow *follow_in_hook(struct call *c, struct sk_buff *skb, struct nf_hook_state *state,
                                                     u8 returned, struct sight *s)
{
    struct hook_state h;

    if (!s)
        return 0;
    s->nfct = READ(c, skb, _nfct);
    read_state(c, &h, state);
    if (!is_ip(h.pf))
        return 0;
    s->netns = h.netns;
    s->in = h.in;
    s->out = h.out;
    s->hook = h.hook;
    s->by_loopback = h.by_loopback;
    s->returned = returned;
    return look(c, skb, s) ? follow((u64)skb, s) : 0;
}

/* A packet that is gone: tell the verdict if its entry says it got no further than this hook. (A bridge hook that calls
 * the IP hooks itself returns "stolen" when the packet has long passed them: ip_sabotage_in, br_nf_pre_routing.) */
static __always_inline void write_gone(struct call *c, u64 skb, struct nf_hook_state *state, u8 verdict)
{
    struct follow *e = already_followed(skb);
    struct hook_state h;
    struct event *out;

    if (!e)
        return;
    read_state(c, &h, state);
    if (e->netns != h.netns || e->stage > stage_of(h.hook, 0) || (verdict == NF_DROP && !e->dead))
        return;
    e->stage = stage_of(h.hook, 1);
    out = reserve_event(e, EVENT_HOOK, skb);
    if (!out)
        return;
    out->hook = h.hook;
    out->pf = h.pf;
    out->verdict = verdict;
    out->flags |= FLAG_NO_HEADER;
    out->in_ifindex = h.in;
    out->out_ifindex = h.out;
    write_state(c, out, state);
    submit_event(out);
}

/* arg: skb, state */
static __always_inline int hook_keep(struct call *c)
{
    struct nf_hook_state *state = (void *)c->arg[1];
    struct sk_buff *skb = (void *)c->arg[0];

    return is_ip(READ(c, state, pf)) && !known_unwanted(c->arg[0], READ(c, skb, _nfct));
}

static __always_inline int hook_returned(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct nf_hook_state *state = (void *)c->arg[1];
    int ret = c->ret;
    struct follow *e;
    struct event *out;
    struct sight *s;

    if (!is_ip(READ(c, state, pf)))
        return 0;
    if (ret != 1) {
        write_gone(c, c->arg[0], state, ret < 0 ? NF_DROP : NF_STOLEN);
        return 0;
    }
    if (known_unwanted(c->arg[0], READ(c, skb, _nfct)))
        return 0;
    s = sight_of(c);
    e = follow_in_hook(c, skb, state, 1, s);
    if (!e || only_drops())
        return 0;
    out = reserve_event(e, EVENT_HOOK, c->arg[0]);
    if (!out)
        return 0;
    write_sight(c, out, skb, s);
    write_state(c, out, state);
    out->pf = READ(c, state, pf);
    out->verdict = NF_ACCEPT;
    submit_event(out);
    return 0;
}

PROBE_RETURN(hook)
