/* Writing one event: reserve, fill what every event has, let the probe add its own, submit.
 *
 * Nobody is woken: the reader comes by timer and drains all there is. When there is no room the event is counted as lost
 * under its kind and CPU, and the packet's hop number has moved on all the same, so the gap shows in that very packet. */

BPF_RINGBUF_OUTPUT(events, RING_PAGES);
BPF_PERCPU_ARRAY(lost, u64, 16);

static __always_inline struct event *reserve_event(struct follow *e, u8 kind, u64 skb)
{
    int index = kind;
    u16 hop = e->hops++;
    struct event *out = events.ringbuf_reserve(sizeof(struct event));

    if (!out) {
        count(lost.lookup(&index));
        return 0;
    }
    __builtin_memset(out, 0, sizeof(*out));
    out->time = bpf_ktime_get_ns();
    out->packet = e->packet;
    out->skb = skb;
    out->hop = hop;
    out->cpu = bpf_get_smp_processor_id();
    out->kind = kind;
    out->flags = e->flags;
    out->netns = e->netns;
    out->hook = NO_HOOK;
    return out;
}

static __always_inline void submit_event(struct event *out)
{
    events.ringbuf_submit(out, BPF_RB_NO_WAKEUP);
}

/* The addresses of struct event are at multiples of 8, which is what makes two words of each. */
static __always_inline void write_tuple(u8 *src, u8 *dst, u16 *sport, u16 *dport, const struct tuple *t)
{
    *(union address *)src = t->src;
    *(union address *)dst = t->dst;
    *sport = t->sport;
    *dport = t->dport;
}

/* Header and connection, from the sight. */
static __always_inline void write_sight(struct call *c, struct event *out, struct sk_buff *skb, struct sight *s)
{
    out->hook = s->hook;
    out->netns = s->netns;
    out->in_ifindex = s->in;
    out->out_ifindex = s->out;
    out->mark = READ(c, skb, mark);
    out->length = s->packet.length;
    out->seq = s->packet.seq;
    out->ack = s->packet.ack;
    out->ident = s->packet.ident;
    out->protocol = s->packet.tuple.protocol;
    out->tcp_flags = s->packet.tcp_flags;
    out->ct_info = s->nfct & ~NFCT_POINTER;
    out->flags |= (s->packet.fragment ? FLAG_FRAGMENT : 0) | (s->has_flow ? FLAG_HAS_CT : 0);
    write_tuple(out->src, out->dst, &out->sport, &out->dport, &s->packet.tuple);
    if (s->has_flow) {
        write_tuple(out->orig_src, out->orig_dst, &out->orig_sport, &out->orig_dport, &s->flow.orig);
        write_tuple(out->reply_src, out->reply_dst, &out->reply_sport, &out->reply_dport, &s->flow.reply);
        out->zone = s->flow.zone;
    }
}

/* With --drops-only, an event that does not end a packet is not written. */
static __always_inline int only_drops(void)
{
    int zero = 0;
    struct filter *f = filters.lookup(&zero);
    return f && f->drops_only;
}
