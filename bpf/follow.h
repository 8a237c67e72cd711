/* Which packet is this, and does anyone want it?
 *
 * A packet is followed from the first event in which it, or its connection's original or reply tuple, matches the
 * filter. From then on its socket buffer's address leads to its entry in `followed`: after DNAT, through veth into
 * another namespace, and into its clones, whatever its headers say by then.
 *
 * An address alone is not an identity: buffers are freed without a word and the next packet may get the same one. There
 * is no cheap, reliable place to see every free. So an entry is believed only where the story goes on:
 *
 *   - in the same namespace, hooks come in order: PREROUTING or OUTPUT, then INPUT or FORWARD, then POSTROUTING. `stage`
 *     counts that up; an event that would step back belongs to another packet, or to this one on its next arrival.
 *   - an arrival is PREROUTING (INPUT or FORWARD where it has no functions) in another namespace, by veth, or in the same
 *     one by loopback. The packet is then the same if what NAT and routing leave alone is the same: IP id, and sequence
 *     number or first payload bytes.
 *   - what a socket has taken passes no hook any more.
 *   - elsewhere (socket, drop), and for a copy just made, those same signs decide.
 *
 * A packet nobody wants must cost next to nothing. When its connection is known and does not match, the answer holds for
 * the rest of its way on this CPU: `slots` remembers it, and every program leaves after that one look-up. Conntrack
 * entries are used again too, so the answer is good for a tick or two, longer than any way and shorter than any entry's
 * time-out. */

struct slot {
    u64 skb;
    u64 nfct;
    u64 until; /* jiffies */
};

struct follow {
    u64 packet;
    u64 until; /* jiffies: when a copy not seen yet is no longer believed in */
    u32 netns; /* where it was last seen, 0 = a copy not seen yet */
    u32 sign;
    u16 ident;
    u16 hops;
    u8 stage;
    u8 flags;
    u8 synack; /* 1 = a SYN-ACK answered this packet */
    u8 dead;   /* 1 = freed as dropped: the address says nothing any more */
};

BPF_PERCPU_ARRAY(slots, struct slot, 1);
BPF_TABLE("lru_hash", u64, struct follow, followed, 32768);

enum { PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING, NO_HOOK = 255 };

/* Where in its way through one namespace a packet is: even inside the hook, odd once the hook has returned. */
static __always_inline u8 stage_of(u8 hook, u8 returned)
{
    u8 rank = hook == POSTROUTING ? 2 : hook == INPUT || hook == FORWARD ? 1 : 0;
    return rank * 2 + returned;
}

/* What is known of a packet at a probe. */
struct sight {
    struct packet packet;
    struct flow flow;
    u64 nfct;
    u32 netns;
    u32 in, out;   /* interface numbers */
    u8 has_flow;
    u8 hook;
    u8 returned;   /* the hook has returned */
    u8 by_loopback;
};

/* Too large for a program's stack of 512 bytes. One a row and CPU is enough: the kernel never runs a program on top of
 * itself (kprobes: bpf_prog_active; fentry: prog->active, since kernel commit ca06f55b9002), it counts a miss instead. */
BPF_PERCPU_ARRAY(sights, struct sight, 32);

static __always_inline struct sight *sight_of(struct call *c)
{
    int number = c->number;
    return sights.lookup(&number);
}

static __always_inline int filter_wants(struct filter *f, struct sight *s)
{
    if (f->netns && f->netns != s->netns)
        return 0;
    if (f->ifindex && !(f->if_netns == s->netns && (f->ifindex == s->in || f->ifindex == s->out)))
        return 0;
    if (tuple_wanted(f, &s->packet.tuple))
        return 1;
    return s->has_flow && (tuple_wanted(f, &s->flow.orig) || tuple_wanted(f, &s->flow.reply));
}

static __always_inline int same_signs(struct follow *e, struct sight *s)
{
    return e->ident == s->packet.ident && e->sign == s->packet.sign;
}

/* Does entry e, found under this packet's address, speak of this packet? */
static __always_inline int goes_on(struct follow *e, struct sight *s)
{
    u8 stage = stage_of(s->hook, s->returned);

    if (e->dead)
        return 0;
    if (!e->netns && bpf_jiffies64() > e->until)
        return 0;
    if (s->hook == NO_HOOK || !e->netns)
        return same_signs(e, s);
    if (e->flags & FLAG_AT_SOCKET)
        return 0;
    if (e->netns == s->netns && (stage > e->stage || (stage == e->stage && !s->returned)))
        return 1;
    if (s->hook == OUTPUT || s->hook == POSTROUTING || (e->netns == s->netns && !s->by_loopback))
        return 0;
    return same_signs(e, s);
}

static __always_inline struct follow *begin(u64 skb, struct sight *s)
{
    struct follow e = {};

    e.packet = bpf_ktime_get_ns() << 8 | (bpf_get_smp_processor_id() & 255);
    e.sign = s->packet.sign;
    e.ident = s->packet.ident;
    followed.update(&skb, &e);
    return followed.lookup(&skb);
}

/* True when this CPU has just decided against this packet's connection. */
static __always_inline int known_unwanted(u64 skb, u64 nfct)
{
    int zero = 0;
    struct slot *slot = slots.lookup(&zero);
    return slot && nfct && slot->skb == skb && slot->nfct == nfct && bpf_jiffies64() <= slot->until;
}

static __always_inline void remember_unwanted(u64 skb, u64 nfct)
{
    int zero = 0;
    struct slot *slot = slots.lookup(&zero);
    if (slot) {
        slot->skb = skb;
        slot->nfct = nfct;
        slot->until = bpf_jiffies64() + 1;
    }
}

/* The entry of the packet in sight *s, new if the filter wants it now; NULL if nobody does. */
static __always_inline struct follow *follow(u64 skb, struct sight *s)
{
    int zero = 0;
    struct follow *e = followed.lookup(&skb);
    struct filter *f;

    if (!e || !goes_on(e, s)) {
        f = filters.lookup(&zero);
        if (!f)
            return 0;
        if (!filter_wants(f, s)) {
            if (e)
                followed.delete(&skb);
            if (s->has_flow && !f->packet_bound && is_settled(s->nfct))
                remember_unwanted(skb, s->nfct);
            return 0;
        }
        e = begin(skb, s);
        if (!e)
            return 0;
    }
    if (s->hook != NO_HOOK)
        e->stage = stage_of(s->hook, s->returned);
    if (s->netns)
        e->netns = s->netns;
    else
        s->netns = e->netns; /* TCP has taken the device off: it is where it was */
    return e;
}

/* Looks at the packet in skb; 0 when it is no IP packet. The caller has set hook, returned, netns, in, out. */
static __always_inline int look(struct call *c, struct sk_buff *skb, struct sight *s)
{
    if (!parse_packet(c, skb, &s->packet))
        return 0;
    s->has_flow = read_flow(s->nfct, &s->flow);
    return 1;
}

/* The entry of a packet that a probe outside the hooks sees: a socket, a drop. Fills *s. */
static __always_inline struct follow *follow_outside(struct call *c, struct sk_buff *skb, struct sight *s)
{
    struct net_device *dev = READ(c, skb, dev);

    if (!s)
        return 0;
    s->nfct = READ(c, skb, _nfct);
    s->hook = NO_HOOK;
    s->returned = 0;
    s->by_loopback = 0;
    s->netns = netns_of_skb(c, skb);
    s->in = dev ? READ(c, dev, ifindex) : 0;
    s->out = 0;
    return look(c, skb, s) ? follow((u64)skb, s) : 0;
}

/* The entry of a packet that a probe deep inside another one's call sees; the signs were checked there. */
static __always_inline struct follow *already_followed(u64 skb)
{
    return followed.lookup(&skb);
}
