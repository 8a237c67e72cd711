/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Writes one event of a packet that is not shed: reserve, fill the common fields, let the probe add its own fields, submit. If
 * the ring is full the event is counted as lost by kind and CPU. The packet's hop number increases in any case, so the packet
 * shows the gap. */

/* A reserved event. `whole` is the same address; 0 = the event is short and ends before joint1. */
struct reserved {
    struct event *out, *whole;
};

static __always_inline void write_head(struct event *out, struct tracked_skb *e, u8 kind, u16 hop)
{
    out->time = bpf_ktime_get_ns();
    out->packet = e->packet;
    out->hop = hop;
    out->kind = kind;
    out->flags = e->flags;
    out->netns = e->netns;
    out->hook = NO_HOOK;
}

static __always_inline struct reserved reserve_whole(struct tracked_skb *e, u8 kind)
{
    struct event *out;
    u16 hop = e->hops++;

    if (e->shed)
        return (struct reserved){0, 0};
    out = events.ringbuf_reserve(sizeof(struct event));
    if (out) {
        count_written(sizeof(*out));
        __builtin_memset(out, 0, sizeof(*out));
        write_head(out, e, kind, hop);
    } else {
        count_lost(kind);
    }
    return (struct reserved){out, out};
}

static __always_inline struct reserved reserve_short(struct tracked_skb *e, u8 kind)
{
    struct event *out;
    u16 hop = e->hops++;

    if (e->shed)
        return (struct reserved){0, 0};
    out = events.ringbuf_reserve(SHORT_EVENT);
    if (out) {
        count_written(SHORT_EVENT);
        __builtin_memset(out, 0, SHORT_EVENT);
        write_head(out, e, kind, hop);
        out->flags |= FLAG_SAME;
    } else {
        count_lost(kind);
    }
    return (struct reserved){out, 0};
}

static __always_inline void submit_event(struct reserved r)
{
    events.ringbuf_submit(r.out, BPF_RB_NO_WAKEUP);
}

/* The addresses in struct event are 8-aligned, so each is copied as two words. */
static __always_inline void write_tuple(u8 *src, u8 *dst, u16 *sport, u16 *dport, const struct tuple *t)
{
    *(union address *)src = t->src;
    *(union address *)dst = t->dst;
    *sport = t->sport;
    *dport = t->dport;
}

static __always_inline void write_name(struct call *c, char *to, struct net_device *dev)
{
    if (c->direct) {
        ((u64 *)to)[0] = ((volatile u64 *)&dev->name)[0];
        ((u64 *)to)[1] = ((volatile u64 *)&dev->name)[1];
    } else {
        bpf_probe_read_kernel(to, sizeof(dev->name), &dev->name);
    }
}

/* Writes header and connection from the observation; the packet's entry keeps what was written. */
static __always_inline void write_observation(struct event *out, struct tracked_skb *e, struct observation *s)
{
    struct emitted *emitted = &e->emitted;

    out->length = s->packet.length;
    out->seq = s->packet.seq;
    out->ack = s->packet.ack;
    out->ident = s->packet.ident;
    out->protocol = s->tuple[HEADER].protocol;
    out->tcp_flags = s->packet.tcp_flags;
    if (s->packet.fragment)
        out->flags |= FLAG_FRAGMENT;
    write_tuple(out->src, out->dst, &out->sport, &out->dport, &s->tuple[HEADER]);
    if (s->has_flow) {
        write_tuple(out->orig_src, out->orig_dst, &out->orig_sport, &out->orig_dport, &s->tuple[ORIG]);
        write_tuple(out->reply_src, out->reply_dst, &out->reply_sport, &out->reply_dport, &s->tuple[REPLY]);
        out->zone = s->flow.zone;
    }
    e->part = s->packet.part;
    emitted->header = header_sum(&s->tuple[HEADER]);
    emitted->shape = s->packet.shape;
    emitted->nfct = (s->has_flow || !(s->nfct & NFCT_POINTER)) && has_settled(s->nfct, s->flow.status) ? s->nfct : UNSETTLED;
    emitted->netns = s->netns;
    emitted->in = s->in;
    emitted->out = s->out;
}

/* Writes the names of a packet's devices, or NULL, into a whole event. */
static __always_inline void write_names(struct call *c, struct event *whole, struct net_device *in, struct net_device *out)
{
    if (in)
        write_name(c, whole->in_name, in);
    if (out)
        write_name(c, whole->out_name, out);
}

/* Reserves an event of the packet in observation *s, a short one if header and connection are unchanged. The caller writes the
 * names of its devices if it is whole. */
static __always_inline struct reserved begin_event(struct call *c, struct tracked_skb *e, u8 kind, struct sk_buff *skb,
                                                   struct observation *s)
{
    struct reserved r;

#ifdef SNAPLEN
    if (!e->snapped && !s->same && !e->shed) {
        e->snapped = 1;
        write_bytes(c, e, skb, s);
    }
#endif
    /* The result is checked directly after reserving: with one common check, older verifiers follow an impossible path and
     * report a leaked reservation. */
    if (s->same) {
        r = reserve_short(e, kind);
        if (!r.out)
            return r;
    } else {
        r = reserve_whole(e, kind);
        if (!r.out)
            return r;
    }
    r.out->hook = s->hook;
    r.out->pf = s->pf;
    r.out->netns = s->netns;
    r.out->in_ifindex = s->in;
    r.out->out_ifindex = s->out;
    r.out->mark = READ(c, skb, mark);
    r.out->ct_info = s->nfct & ~NFCT_POINTER;
    if (s->same ? s->nfct & NFCT_POINTER : s->has_flow)
        r.out->flags |= FLAG_HAS_CT;
    if (r.whole)
        write_observation(r.whole, e, s);
    return r;
}

/* 1 if this is the first packet of its connection for conntrack, or an ICMP error about a connection. */
static __always_inline int begins_connection(u64 nfct)
{
    return (nfct & NFCT_POINTER) && (!is_settled(nfct) || is_related(nfct));
}

/* With --drops-only, an event that does not end its packet is not written. Packets that open a connection are the exception:
 * the decisions about them (rules, translations, the listener's answer) explain the connection's later packets, and a missing
 * answer to a SYN is only known if every answer is written. So all events are written for TCP's SYN, SYN-ACK and RST, the first
 * packet of any other connection, ICMP errors, and packets that reach a listener. The reader may leave out these events, too
 * (enum detail in records/ring.h). nfct: of the packet, 0 = not known here. */
static __always_inline int drops_only_excludes(struct tracked_skb *e, u64 nfct)
{
    if (e->all_events)
        return 0;
    if (!e->opens) {
        e->opens = begins_connection(nfct);
        if (!e->opens)
            return 1;
    }
    return is_shed_opening(e);
}
