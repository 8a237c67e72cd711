/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* NAT: nf_nat_manip_pkt rewrites the header, in either direction of the connection.
 *
 * At entry the packet is unchanged. The new header is in the connection: the inverted tuple of the other direction
 * (nf_ct_invert_tuple). So one probe at entry has both headers, and the packet's next event confirms the new one. ICMP errors
 * about a translated connection are rewritten by other functions; they appear as a header that changed in a hook.
 *
 * MASQUERADE is SNAT that stores its interface: only then nf_conn_nat.masq_index is set. */

#ifdef HAVE_nf_conn
static __always_inline int is_masquerade(struct call *c, struct nf_conn *ct)
{
#if defined(HAVE_nf_ct_ext) && defined(HAVE_nf_conn_nat_masq_index)
    struct nf_ct_ext *ext = READ(c, ct, ext);
    struct nf_conn_nat *nat;
    u8 offset;

    if (!ext)
        return 0;
    offset = READ(c, ext, offset[ENUM_NF_CT_EXT_NAT]);
    if (!offset)
        return 0;
    nat = (void *)ext + offset;
    return LOAD_FIELD(c, nat, masq_index) != 0;
#else
    return 0;
#endif
}

/* The hook of a rewrite, which is not among the arguments. Destinations change in PREROUTING, or in OUTPUT for packets that
 * this namespace sends (a packet received by a device has skb_iif set). Sources change in POSTROUTING, or in INPUT for packets
 * that are delivered here, that have not passed FORWARD and that IPVS has not sent on. */
static __always_inline u8 hook_of_rewrite(struct tracked_skb *e, int source, u32 received_by)
{
    if (!source)
        return received_by ? PREROUTING : OUTPUT;
    return received_by && e && e->stage <= stage_of(INPUT, 0) && e->resent_in != e->netns ? INPUT : POSTROUTING;
}

/* Stores the header after the rewrite, so that the next event can be short if it has just that header. An ICMP message has one
 * id, which is the source port in conntrack's tuples of both directions; its type does not change. */
static __always_inline void write_rewrite(struct tracked_skb *e, struct observation *s, int source, int reply)
{
    struct tuple t = s->tuple[HEADER], *other = &s->tuple[reply ? ORIG : REPLY];

    if (s->same && !fill_flow(s, e))
        return;
    if (source) {
        t.src = other->dst;
        t.sport = other->dport;
    } else {
        t.dst = other->src;
        t.dport = other->sport;
    }
    if (t.protocol == ICMP || t.protocol == ICMPV6) {
        t.sport = other->sport;
        t.dport = s->tuple[HEADER].dport;
    }
    e->emitted.header = header_sum(&t);
}

/* arg: skb, ct, what is rewritten (0 source, 1 destination), direction (0 original, 1 reply) */
static __always_inline int nat_entered(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct nf_conn *ct = (void *)c->arg[1];
    int source = !(c->arg[2] & 255), reply = c->arg[3] & 1;
    u64 nfct = READ(c, skb, _nfct);
    struct net_device *dev;
    struct tracked_skb *e;
    struct reserved r;
    struct observation *s;

    if (in_negative_cache(c, nfct))
        return 0;
    s = observation_of(c);
    if (!s)
        return 0;
    e = tracked_recently(c->arg[0], s);
    if (only_drops() && !begins_connection(nfct) && !(e && e->opens))
        return 0;
    s->nfct = nfct;
    dev = READ(c, skb, dev);
    s->netns = netns_of(c, READ(c, ct, ct_net_net));
    s->in = e ? e->emitted.in : 0; /* not known here, so those of the hook */
    s->out = e ? e->emitted.out : 0;
    s->pf = 0;
    s->priority = UNKNOWN_PRIORITY;
    s->returned = 0;
    s->by_loopback = dev && READ(c, dev, ifindex) == LOOPBACK_IFINDEX;
    s->hook = hook_of_rewrite(e, source, READ(c, skb, skb_iif));
    e = track(c, skb, s, e, COMPARED);
    if (!e || drops_only_excludes(e, nfct))
        return 0;
    r = begin_event(c, e, EVENT_NAT, skb, s);
    if (!r.out) {
        e->emitted.netns = 0;
        return 0;
    }
    r.out->pf = s->tuple[HEADER].family == 4 ? 2 : 10;
    r.out->verdict = NF_ACCEPT;
    r.out->manip = !source | reply << 1;
    if (source != reply && is_masquerade(c, ct))
        r.out->flags |= FLAG_MASQ;
    submit_event(r);
    write_rewrite(e, s, source, reply);
    return 0;
}
PROBE_ENTRY(nat)
#endif

/* Every call of NAT, with or without a change. Verbose only, since it runs twice for every packet.
 * arg: skb, state */
static __always_inline int nat_hook_keep(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    return !in_negative_cache(c, READ(c, skb, _nfct));
}

static __always_inline int nat_hook_returned(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    u8 verdict = c->ret & 255;
    struct observation *s = observation_of(c);
    struct hook_step step = observe_in_hook(c, skb, (void *)c->arg[1], s);
    struct tracked_skb *e;
    struct reserved r;

    if (!s || step.unwanted)
        return 0;
    e = track_in_hook(c, skb, (void *)c->arg[1], step, UNKNOWN_PRIORITY, s);
    if (!e || (verdict != NF_DROP && drops_only_excludes(e, s->nfct)))
        return 0;
    r = begin_hook_event(c, e, EVENT_NAT_HOOK, skb, s, (void *)c->arg[1]);
    if (!r.out)
        return 0;
    r.out->verdict = verdict;
    submit_event(r);
    return 0;
}
PROBE_RETURN(nat_hook)
