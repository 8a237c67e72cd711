/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Netfilter hooks: nf_hook_slow runs the functions of a hook one after another and returns their verdict.
 *
 * It returns 1: accepted, the packet is valid. Below 0: dropped, the packet has been freed (after the tracepoint
 * skb:kfree_skb). 0: stolen or queued, the packet may have been freed. So only an accepted packet may be read here. */

enum { NF_DROP, NF_ACCEPT, NF_STOLEN, NF_QUEUE, NF_REPEAT };

#define LOOPBACK_IFINDEX 1 /* of `lo` in each namespace, and of nothing else (loopback_net_init) */

/* NFPROTO_IPV4 or NFPROTO_IPV6. */
static __always_inline int is_ip(u8 pf)
{
    return pf == 2 || pf == 10;
}

/* Bridges and devices (ingress, egress) have hooks of their own, before, between or after the hooks of IP: there the
 * fingerprint identifies the packet, not the order of hooks. The ingress hook of family inet has IP's protocol family and a
 * sixth hook number. */
static __always_inline u8 ip_hook(u8 pf, u8 hook)
{
    return is_ip(pf) && hook <= POSTROUTING ? hook : NO_HOOK;
}

/* A packet inside a hook. unwanted = 1: the filter rejects it, whatever else is read. entry: of its address, or NULL. */
struct hook_step {
    struct tracked_skb *entry;
    int unwanted;
};

/* Begins the observation *s of a packet inside a hook (with returned = 1: directly after it), with the cheapest checks first.
 * track_in_hook does the rest. pf, nfct: of state and skb. */
static __always_inline struct hook_step observe_hook(struct call *c, struct sk_buff *skb, struct nf_hook_state *state, u8 pf,
                                                     u64 nfct, u8 returned, struct observation *s)
{
    struct hook_step step = {0, 1};

    if (!s)
        return step;
    s->pf = pf;
    s->nfct = nfct;
    s->netns = netns_of(c, READ(c, state, net));
    s->hook = ip_hook(s->pf, READ(c, state, hook));
    s->returned = returned;
    if (!(s->nfct & NFCT_POINTER) && s->hook != NO_HOOK && passed_over((u64)skb, s->netns, s->pf, stage_of(s->hook, returned)))
        return step;
    step.entry = tracked_recently((u64)skb, s);
    step.unwanted = excluded_by_ports(c, skb, s, step.entry);
    return step;
}

static __always_inline struct hook_step observe_in_hook(struct call *c, struct sk_buff *skb, struct nf_hook_state *state,
                                                        struct observation *s)
{
    return observe_hook(c, skb, state, READ(c, state, pf), READ(c, skb, _nfct), 0, s);
}

/* The entry of a packet inside a hook or directly after it, NULL = unwanted. Fills the rest of *s. reading: a constant. priority:
 * of the function that has the packet, or UNKNOWN_PRIORITY. */
static __always_inline struct tracked_skb *track_at_hook(struct call *c, struct sk_buff *skb, struct nf_hook_state *state,
                                                         struct hook_step step, enum header_reading reading, s32 priority,
                                                         struct observation *s)
{
    struct net_device *in, *out;

    s->priority = priority;
    in = READ(c, state, in);
    out = READ(c, state, out);
    s->in = in ? READ(c, in, ifindex) : 0;
    s->out = out ? READ(c, out, ifindex) : 0;
    s->by_loopback = s->in == LOOPBACK_IFINDEX;
    return track(c, skb, s, step.entry, reading);
}

static __always_inline struct tracked_skb *track_in_hook(struct call *c, struct sk_buff *skb, struct nf_hook_state *state,
                                                         struct hook_step step, s32 priority, struct observation *s)
{
    return track_at_hook(c, skb, state, step, UNREAD, priority, s);
}

/* Reserves an event of a packet inside a hook. */
static __always_inline struct reserved begin_hook_event(struct call *c, struct tracked_skb *e, u8 kind, struct sk_buff *skb,
                                                        struct observation *s, struct nf_hook_state *state)
{
    struct reserved r = begin_event(c, e, kind, skb, s);

    if (r.whole)
        write_names(c, r.whole, READ(c, state, in), READ(c, state, out));
    return r;
}

/* Writes the verdict of a packet that may have been freed, if its entry shows no later hook than this one. (A bridge hook that
 * calls the IP hooks itself returns "stolen" after the packet has passed them: ip_sabotage_in, br_nf_pre_routing.) */
static __always_inline void write_gone(struct call *c, u64 skb, struct nf_hook_state *state, u8 verdict)
{
    struct tracked_skb *e = find_tracked(skb);
    u8 hook = READ(c, state, hook);
    struct net_device *in, *out;
    struct reserved r;

    if (!e || e->netns != netns_of(c, READ(c, state, net)) || !may_follow(e->hook, hook) || e->stage > stage_of(hook, 0))
        return;
    if (verdict == NF_STOLEN && e->back_in == hook + 1) { /* on another CPU it is already in the functions that follow */
        e->back_in = 0;
        return;
    }
    if (verdict == NF_DROP ? !e->dead : is_shed_opening(e))
        return;
    e->stage = stage_of(hook, 1);
    e->hook = hook;
    r = reserve_whole(e, EVENT_HOOK);
    if (!r.out)
        return;
    in = READ(c, state, in);
    out = READ(c, state, out);
    r.out->hook = hook;
    r.out->pf = READ(c, state, pf);
    r.out->verdict = verdict;
    r.out->flags |= FLAG_NO_HEADER;
    if (in) {
        r.out->in_ifindex = READ(c, in, ifindex);
        write_name(c, r.whole->in_name, in);
    }
    if (out) {
        r.out->out_ifindex = READ(c, out, ifindex);
        write_name(c, r.whole->out_name, out);
    }
    submit_event(r);
}

/* arg: skb, state */
static __always_inline int hook_keep(struct call *c)
{
    struct nf_hook_state *state = (void *)c->arg[1];
    struct sk_buff *skb = (void *)c->arg[0];

    return is_ip(READ(c, state, pf)) && !in_negative_cache(c, READ(c, skb, _nfct));
}

/* 1 for a packet that can show what its socket asked for. */
static __always_inline int may_show_request(struct observation *s)
{
    u8 protocol = s->tuple[HEADER].protocol;
    return (protocol == UDP && is_any_asked()) || (protocol == TCP && s->packet.tcp_flags == TCP_FLAG_SYN);
}

static __always_inline int hook_returned(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct nf_hook_state *state = (void *)c->arg[1];
    int ret = c->ret;
    u8 pf = READ(c, state, pf);
    u64 nfct;
    struct reserved r;
    struct tracked_skb *e;
    struct observation *s;
    struct hook_step step;
    struct sock *sk;

    if (!is_ip(pf))
        return 0;
    if (ret != 1) {
        write_gone(c, c->arg[0], state, ret < 0 ? NF_DROP : NF_STOLEN);
        return 0;
    }
    nfct = READ(c, skb, _nfct);
    if (in_negative_cache(c, nfct))
        return 0;
    s = observation_of(c);
    step = observe_hook(c, skb, state, pf, nfct, 1, s);
    if (!s || step.unwanted)
        return 0;
    e = track_at_hook(c, skb, state, step, COMPARED, UNKNOWN_PRIORITY, s);
    if (!e || drops_only_excludes(e, s->nfct))
        return 0;
    r = begin_hook_event(c, e, EVENT_HOOK, skb, s, state);
    if (!r.out)
        return 0;
    r.out->verdict = NF_ACCEPT;
    submit_event(r);
    if (s->hook == OUTPUT && may_show_request(s)) {
        sk = READ(c, skb, sk);
        if (sk && is_ip_socket(c, sk)) {
            if (s->tuple[HEADER].protocol == UDP)
                write_sent_elsewhere(c, e, sk, s);
            else
                write_replaced_address(c, e, sk);
        }
    }
    return 0;
}

PROBE_RETURN(hook)
