/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* IPVS: the virtual server of a packet, and the real server that it is sent to.
 *
 * ip_vs_schedule chooses a real server for a new connection. ip_vs_nat_xmit writes the real server's address into each packet
 * of the connection and sends it: a packet from INPUT then passes OUTPUT and POSTROUTING, as if this node had sent it, and
 * INPUT returns "stolen". handle_response writes the virtual server's address into the answers. Without a real server
 * ip_vs_leave refuses the packet; for any other drop ip_vs_in_hook gives no reason.
 *
 * An IPVS connection is written in the fields of conntrack: original = client to virtual server, reply = real server to
 * client. */

#if defined(HAVE_ip_vs_conn) && defined(HAVE_ip_vs_service)

#define IP_VS_CONN_F_FWD_MASK 7
#define IP_VS_CONN_F_MASQ 0
#define IP_VS_SVC_F_PERSISTENT 1

/* Map from skb address to the connection just made for the packet, or REFUSED_BY_IPVS; until the packet is sent or dropped. */
#define REFUSED_BY_IPVS 1ULL
BPF_TABLE("lru_hash", u64, u64, ipvs_chosen, 1024);

static __always_inline void save_choice(u64 skb, u64 choice)
{
    ipvs_chosen.update(&skb, &choice);
}

/* Returns and removes the packet's entry in that map; 0 = none. */
static __always_inline u64 take_choice(u64 skb)
{
    u64 *noted = ipvs_chosen.lookup(&skb), choice;

    if (!noted)
        return 0;
    choice = *noted;
    ipvs_chosen.delete(&skb);
    return choice;
}

static __always_inline void read_end(union address *to, const u8 *from, u16 family)
{
    union address a = {};

    bpf_probe_read_kernel(&a, sizeof(a), from);
    if (family == 2) /* AF_INET */
        map_ipv4(to, a.parts[0]);
    else
        *to = a;
}

/* Fills both tuples, as read_flow() does from a conntrack entry. */
static __always_inline void read_ipvs(struct ip_vs_conn *cp, struct tuple *tuples)
{
    struct tuple *orig = &tuples[0], *reply = &tuples[1];
    u16 family = PEEK(cp, af);

    read_end(&orig->src, cp->caddr, family);
    read_end(&orig->dst, cp->vaddr, family);
    read_end(&reply->src, cp->daddr, PEEK(cp, daf));
    reply->dst = orig->src;
    orig->sport = reply->dport = bpf_ntohs(PEEK(cp, cport));
    orig->dport = bpf_ntohs(PEEK(cp, vport));
    reply->sport = bpf_ntohs(PEEK(cp, dport));
    orig->protocol = reply->protocol = PEEK(cp, protocol);
    orig->family = reply->family = family == 2 ? 4 : 6;
    orig->has_ports = reply->has_ports = has_ports(orig->protocol);
}

/* The entry of a packet of this connection. The hook before has filtered by conntrack's tuples; so here the filter applies to
 * the IPVS tuples: the real server, and for an answer the virtual server. Fills *s. */
static __always_inline struct tracked_skb *track_ipvs(struct call *c, struct sk_buff *skb, struct ip_vs_conn *cp, u8 hook,
                                                  struct observation *s)
{
    struct netns_ipvs *ipvs = PEEK(cp, ipvs);
    struct net *net = ipvs ? PEEK(ipvs, net) : 0;
    u64 key = (u64)skb;
    struct tracked_skb *e;
    struct filter *f;
    int zero = 0;

    f = filters.lookup(&zero);
    if (!s || !f)
        return 0;
    s->nfct = READ(c, skb, _nfct);
    s->hook = hook;
    s->pf = PEEK(cp, af);
    s->netns = net ? PEEK(net, ns_inum) : 0;
    s->in = s->out = 0;
    s->returned = s->by_loopback = s->same = 0;
    s->whole = s->has_flow = 1;
    if (!parse_header(c, skb, s))
        return 0;
    read_ipvs(cp, &s->tuple[ORIG]);
    s->flow.zone = zone_of(s->nfct);
    s->flow.status = s->flow_of = 0;
    e = tracked_recently(key, s);
    if (e && is_same_packet(e, s))
        return move_on(e, s);
    if (!filter_wants(f, s) || !wants_tcp_flags(f, s))
        return 0;
    e = begin(key, s, e);
    return e ? move_on(e, s) : 0;
}

static __always_inline void write_service(struct event *out, struct ip_vs_service *service)
{
    struct ip_vs_scheduler *scheduler = service ? PEEK(service, scheduler) : 0;

    if (scheduler)
        bpf_probe_read_kernel_str(&out->table, sizeof(out->table), PEEK(scheduler, name));
    if (service && PEEK(service, flags) & IP_VS_SVC_F_PERSISTENT)
        out->ct_info |= IPVS_PERSISTENT;
}

/* Writes an event of a packet of this connection, in observation *s. */
static __always_inline int write_ipvs(struct call *c, struct tracked_skb *e, struct sk_buff *skb, struct ip_vs_conn *cp,
                                      struct observation *s, u8 act, u8 manip)
{
    struct reserved r = begin_event(c, e, EVENT_IPVS, skb, s);
    struct ip_vs_dest *dest;

    e->emitted.netns = 0; /* the next event is whole: this one has another connection, and the header changes */
    if (!r.out)
        return 0;
    r.out->flags &= ~FLAG_HAS_CT;
    r.out->verdict = NF_ACCEPT;
    r.out->object = (u64)cp;
    r.out->state = act;
    r.out->manip = manip;
    r.out->ct_info = PEEK(cp, flags) & IP_VS_CONN_F_FWD_MASK;
    dest = PEEK(cp, dest);
    if (dest)
        write_service(r.out, PEEK(dest, svc));
    submit_event(r);
    return 0;
}

/* Reserves an event of a packet that is already tracked, with an unchanged header. */
static __always_inline struct reserved begin_refusal(struct tracked_skb *e, u8 act)
{
    struct reserved r = reserve_whole(e, EVENT_IPVS);

    if (!r.out)
        return r;
    r.out->flags |= FLAG_NO_HEADER;
    r.out->verdict = NF_DROP;
    r.out->state = act;
    r.out->hook = e->hook == OUTPUT ? OUTPUT : INPUT;
    return r;
}

/* arg: service, skb; returns the connection */
static __always_inline int ipvs_schedule_keep(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[1];
    return !in_negative_cache(c, READ(c, skb, _nfct));
}

static __always_inline int ipvs_schedule_returned(struct call *c)
{
    if (c->ret && ipvs_schedule_keep(c))
        save_choice(c->arg[1], c->ret);
    return 0;
}
PROBE_RETURN(ipvs_schedule)

/* arg: skb, connection */
static __always_inline int ipvs_nat4_entered(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct ip_vs_conn *cp = (void *)c->arg[1];
    struct tracked_skb *e;
    struct observation *s;
    u8 act;

    if (in_negative_cache(c, READ(c, skb, _nfct)))
        return 0;
    act = take_choice(c->arg[0]) == c->arg[1] ? IPVS_CHOSEN : IPVS_KNOWN;
    s = observation_of(c);
    e = track_ipvs(c, skb, cp, READ(c, skb, skb_iif) ? INPUT : OUTPUT, s);
    if (!e)
        return 0;
    if (!drops_only_excludes(e, s->nfct))
        write_ipvs(c, e, skb, cp, s, act, 1);
    e->stage = stage_of(OUTPUT, 0);
    e->hook = OUTPUT;
    e->resent_in = e->netns;
    return 0;
}
#define ipvs_nat6_entered ipvs_nat4_entered
PROBE_ENTRY(ipvs_nat4)
PROBE_ENTRY(ipvs_nat6)

/* arg: skb, connection, hook */
static __always_inline int ipvs_reply_entered(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct ip_vs_conn *cp = (void *)c->arg[1];
    struct observation *s = observation_of(c);
    struct tracked_skb *e = find_tracked(c->arg[0]);

    if (in_negative_cache(c, READ(c, skb, _nfct)) || (only_drops() && !(e && e->opens)))
        return 0;
    e = track_ipvs(c, skb, cp, c->arg[2], s);
    return e && !drops_only_excludes(e, s->nfct) ? write_ipvs(c, e, skb, cp, s, IPVS_REPLY, 2) : 0;
}
PROBE_ENTRY(ipvs_reply)

/* arg: service, skb; returns the verdict */
static __always_inline int ipvs_leave_keep(struct call *c)
{
    return find_tracked(c->arg[1]) != 0;
}

static __always_inline int ipvs_leave_returned(struct call *c)
{
    struct ip_vs_service *service = (void *)c->arg[0];
    struct tracked_skb *e = find_tracked(c->arg[1]);
    union address virtual;
    struct reserved r;

    if (!e || e->dead || (c->ret & 255) != NF_DROP)
        return 0;
    r = begin_refusal(e, IPVS_NO_SERVER);
    if (!r.out)
        return 0;
    r.out->pf = PEEK(service, af);
    r.out->flags |= FLAG_REJECT;
    r.out->reason = r.out->pf == 2 ? 3 : 4; /* port unreachable, in ICMP and ICMPv6 */
    r.out->mark = PEEK(service, fwmark);
    write_service(r.out, service);
    read_end(&virtual, service->addr, r.out->pf);
    *(union address *)r.whole->orig_dst = virtual;
    r.whole->orig_dport = bpf_ntohs(PEEK(service, port));
    r.whole->protocol = PEEK(service, protocol);
    submit_event(r);
    save_choice(c->arg[1], REFUSED_BY_IPVS);
    return 0;
}
PROBE_RETURN(ipvs_leave)

/* arg: skb; returns the verdict */
static __always_inline int ipvs_in_keep(struct call *c)
{
    return find_tracked(c->arg[0]) != 0;
}

static __always_inline int ipvs_in_returned(struct call *c)
{
    struct tracked_skb *e;
    struct reserved r;

    if ((c->ret & 255) != NF_DROP)
        return 0;
    e = find_tracked(c->arg[0]);
    if (!e || e->dead || take_choice(c->arg[0]) == REFUSED_BY_IPVS)
        return 0;
    r = begin_refusal(e, IPVS_DROPPED);
    if (r.out)
        submit_event(r);
    return 0;
}
PROBE_RETURN(ipvs_in)
#endif
