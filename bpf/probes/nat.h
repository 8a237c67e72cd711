/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* NAT: nf_nat_manip_pkt is where a header is rewritten, in either direction of the connection.
 *
 * It gets the packet before the change. What it will write is in the connection: the tuple of the other direction, turned
 * around (nf_ct_invert_tuple). So one probe at entry knows before and after, and the packet's next event confirms it.
 * ICMP errors about a translated connection are rewritten elsewhere; they show as a header that changed in a hook.
 *
 * MASQUERADE is SNAT that remembers its interface: only then is nf_conn_nat.masq_index set. */

#ifdef HAVE_nf_conn
static __always_inline int is_masquerade(struct nf_conn *ct)
{
#if defined(HAVE_nf_ct_ext) && defined(HAVE_nf_conn_nat_masq_index)
    struct nf_ct_ext *ext = PEEK(ct, ext);
    struct nf_conn_nat *nat;
    u8 offset = 0;

    if (!ext)
        return 0;
    bpf_probe_read_kernel(&offset, sizeof(offset), &ext->offset[ENUM_NF_CT_EXT_NAT]);
    if (!offset)
        return 0;
    nat = (void *)ext + offset;
    return PEEK(nat, masq_index) != 0;
#else
    return 0;
#endif
}

/* Which hook is this? It is not among the arguments. Destinations change on the way in: PREROUTING, or OUTPUT for what this
 * namespace sends itself (a packet received by a device has skb_iif set). Sources change on the way out: POSTROUTING, or
 * INPUT for what is delivered here and has been neither through FORWARD nor sent on by IPVS. */
static __always_inline u8 hook_of_rewrite(struct tracked_skb *e, int source, u32 received_by)
{
    if (!source)
        return received_by ? PREROUTING : OUTPUT;
    return received_by && e && e->stage <= stage_of(INPUT, 0) && e->resent_in != e->netns ? INPUT : POSTROUTING;
}

/* What the header will be, for the next event to be a short one if it is just that. An ICMP message has one id, which belongs to
 * the source in conntrack's tuples of both directions; its type stays. */
static __always_inline void tell_rewrite(struct tracked_skb *e, struct observation *s, int source, int reply)
{
    struct tuple t = s->tuple[HEADER], *other = &s->tuple[reply ? ORIG : REPLY];

    if (s->same && !read_flow(s->nfct, &s->tuple[ORIG]))
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

    e = find_tracked(c->arg[0]);
    if (is_cached_unwanted(nfct) || (only_drops() && !begins_connection(nfct) && !(e && e->opens)))
        return 0;
    s = observation_of(c);
    if (!s)
        return 0;
    s->nfct = nfct;
    dev = READ(c, skb, dev);
    s->netns = netns_of(c, READ(c, ct, ct_net_net));
    s->in = e ? e->emitted.in : 0; /* not known here: those of the hook */
    s->out = e ? e->emitted.out : 0;
    s->pf = 0;
    s->returned = 0;
    s->by_loopback = dev && (READ(c, dev, flags) & IFF_LOOPBACK);
    s->hook = hook_of_rewrite(e, source, READ(c, skb, skb_iif));
    e = track(c, skb, s, 0);
    if (!e || only_ends(e, nfct))
        return 0;
    r = begin_event(c, e, EVENT_NAT, skb, s, 0, 0);
    if (!r.out) {
        e->emitted.netns = 0;
        return 0;
    }
    r.out->pf = s->tuple[HEADER].family == 4 ? 2 : 10;
    r.out->verdict = NF_ACCEPT;
    r.out->manip = !source | reply << 1;
    if (source != reply && is_masquerade(ct))
        r.out->flags |= FLAG_MASQ;
    submit_event(r);
    tell_rewrite(e, s, source, reply);
    return 0;
}
PROBE_ENTRY(nat)
#endif

/* Verbose only, since it runs for every packet twice: NAT was asked, whether or not it changed anything.
 * arg: skb, state */
static __always_inline int nat_hook_keep(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    return !is_cached_unwanted(READ(c, skb, _nfct));
}

static __always_inline int nat_hook_returned(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    u8 verdict = c->ret & 255;
    struct observation *s = observation_of(c);
    struct tracked_skb *e = track_in_hook(c, skb, (void *)c->arg[1], 0, s);
    struct reserved r;

    if (!e || (verdict != NF_DROP && only_ends(e, s->nfct)))
        return 0;
    r = begin_hook_event(c, e, EVENT_NAT_HOOK, skb, s, (void *)c->arg[1]);
    if (!r.out)
        return 0;
    r.out->verdict = verdict;
    submit_event(r);
    return 0;
}
PROBE_RETURN(nat_hook)
