/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which packet is this, and does anyone want it?
 *
 * A packet is followed from the first event in which it, or its connection's original or reply tuple, matches the
 * filter. From then on its socket buffer's address leads to its entry in `tracked_skbs`: after DNAT, through veth into
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
 *   - in a tunnel (VXLAN, as flannel makes it between nodes) the buffer has another packet's header in front. The entry is kept
 *     while the packet's own header stands behind that one; it goes on where the packet comes out, if that is on this machine. */

/* The last whole event of a packet, and the rewrite told since: while this stays so, its next events can be short. */
struct emitted {
    u64 header; /* header_sum of the tuple */
    u64 nfct;   /* UNSETTLED while the connection's tuples may still change */
    u32 netns;
    u32 in, out; /* whose names were told */
    u32 shape;   /* enum header_shape */
};

#define UNSETTLED (~0ULL)

struct tracked_skb {
    u64 packet;
    u64 until; /* jiffies: when a copy not seen yet is no longer believed in */
    u32 netns; /* where it was last seen, 0 = a copy not seen yet */
    u32 fingerprint;
    u16 ident;
    u16 hops;
    u8 stage;
    u8 flags;
    u8 synack; /* enum synack, or-ed: how this packet, a SYN, was answered */
    u8 dead;   /* 1 = freed as dropped: the address says nothing any more */
    u32 resent_in; /* where IPVS sent it on, as if it began there */
    u8 snapped;    /* 1 = its bytes have been written, see core/payload.h */
    u8 shed;   /* 1 = the ring was nearly full when it came: it is followed, and nothing of it is written */
    u8 opens;      /* 1 = it opens a connection, or answers a packet that does: see only_ends */
    u8 part;       /* 1 = its last whole event was of a fragment: by the next event its buffer may hold the whole packet */
    struct emitted emitted;
};

BPF_TABLE("lru_hash", u64, struct tracked_skb, tracked_skbs, 32768);

/* Which addresses may be in `tracked_skbs` at all: when a packet was last begun at one of this hash, in jiffies. Looking here first
 * spares most packets the look-up there. A packet that waits longer than this in a queue begins anew. */
#define RECENT_PLACES 4096
#define RECENT_TICKS 30000
BPF_ARRAY(recent, u64, RECENT_PLACES);

/* The entry of a packet, whether or not it still speaks of this one. */
static __always_inline struct tracked_skb *find_tracked(u64 skb)
{
    return tracked_skbs.lookup(&skb);
}

static __always_inline int same_fingerprint(struct tracked_skb *e, struct observation *s)
{
    return e->ident == s->packet.ident && e->fingerprint == s->packet.fingerprint;
}

/* A number again of what the verifier takes for a pointer: it lets none be computed with, but forgets when it has been stored. */
static __always_inline u64 *recent_of(u64 skb, struct observation *s)
{
    int place;

    *(volatile u64 *)&s->address = skb;
    place = (*(volatile u64 *)&s->address >> 8 ^ *(volatile u64 *)&s->address >> 20) & (RECENT_PLACES - 1);
    return recent.lookup(&place);
}

static __always_inline struct tracked_skb *tracked_recently(u64 skb, struct observation *s)
{
    u64 *when = recent_of(skb, s);
    return when && bpf_jiffies64() - *when <= RECENT_TICKS ? find_tracked(skb) : 0;
}

static __always_inline void track_recent(u64 skb, struct observation *s)
{
    u64 *when = recent_of(skb, s);
    if (when)
        *when = bpf_jiffies64();
}

/* Is this the next step of e's packet through one namespace? */
static __always_inline int steps_on(struct tracked_skb *e, struct observation *s)
{
    u8 stage = stage_of(s->hook, s->returned);

    if (e->dead || e->netns != s->netns || s->hook == NO_HOOK || e->flags & FLAG_AT_SOCKET)
        return 0;
    return stage > e->stage || (stage == e->stage && !s->returned);
}

/* Does entry e, found under this packet's address, speak of this packet? */
static __always_inline int is_same_packet(struct tracked_skb *e, struct observation *s)
{
    if (e->dead)
        return 0;
    if (!e->netns && bpf_jiffies64() > e->until)
        return 0;
    if (s->hook == NO_HOOK || !e->netns)
        return same_fingerprint(e, s);
    if (steps_on(e, s))
        return 1;
    if (e->flags & FLAG_AT_SOCKET)
        return 0;
    if (s->hook == OUTPUT || s->hook == POSTROUTING || (e->netns == s->netns && !s->by_loopback))
        return 0;
    return same_fingerprint(e, s);
}

/* A number for a header, another one for nearly every other header. */
static __always_inline u64 header_sum(const struct tuple *t)
{
    u64 src = t->src.words[0] ^ t->src.words[1], dst = t->dst.words[0] ^ t->dst.words[1];
    return src * 0x9e3779b97f4a7c15ULL + dst * 0xc2b2ae3d27d4eb4fULL + ((u64)t->sport << 16 | t->dport) * 0x165667b19e3779f9ULL;
}

/* Copies go their ways side by side, so that "the last whole event" would not say which. Fragments are put together in a hook
 * that writes no event, in the buffer of the one that came last. */
static __always_inline int may_be_short(struct tracked_skb *e, struct observation *s)
{
    return e && !s->whole && !e->part && !(e->flags & FLAG_CLONE);
}

static __always_inline int same_place(struct emitted *emitted, struct observation *s)
{
    return emitted->netns == s->netns && emitted->nfct == s->nfct && (!s->in || emitted->in == s->in) && (!s->out || emitted->out == s->out);
}

static __always_inline struct tracked_skb *begin(u64 skb, struct observation *s)
{
    struct tracked_skb e = {};

    e.packet = bpf_ktime_get_ns() << 8 | (bpf_get_smp_processor_id() & 255);
    e.fingerprint = s->packet.fingerprint;
    e.ident = s->packet.ident;
    e.opens = s->tuple[HEADER].protocol == TCP && s->packet.tcp_flags & (TCP_FLAG_SYN | TCP_FLAG_RST);
    if (nearly_full()) {
        e.shed = 1;
        count_lost(PACKETS_SHED);
    }
    tracked_skbs.update(&skb, &e);
    track_recent(skb, s);
    uncache_unwanted(skb, s->nfct);
    return tracked_skbs.lookup(&skb);
}

static __always_inline u32 inner_fingerprint(u8 protocol, const u8 *h)
{
    return protocol == TCP ? bpf_ntohl(*(u32 *)(h + 4)) ^ bpf_ntohl(*(u32 *)(h + 8)) : *(u32 *)(h + 8);
}

/* Is e's packet on its way inside of the one whose header is in front? The kernel notes where the inner header begins when it
 * wraps a packet up (skb_reset_inner_headers), and the buffer keeps that through veth, in a bridge and in the other namespace.
 * TCP and UDP without IP options or extensions. Overwrites s->raw. */
static __always_inline int in_tunnel(struct call *c, struct sk_buff *skb, struct tracked_skb *e, struct observation *s)
{
    u32 inner = READ(c, skb, inner_network_header);
    void *at = READ(c, skb, head);

    if (e->dead || !inner || inner == READ(c, skb, network_header))
        return 0;
    if (bpf_probe_read_kernel(s->raw, RAW_BYTES, at + inner))
        return 0;
    if (s->raw[0] == 0x45)
        return (s->raw[9] == TCP || s->raw[9] == UDP) && bpf_ntohs(*(u16 *)(s->raw + 4)) == e->ident &&
               inner_fingerprint(s->raw[9], s->raw + 20) == e->fingerprint;
    return s->raw[0] >> 4 == 6 && (s->raw[6] == TCP || s->raw[6] == UDP) && inner_fingerprint(s->raw[6], s->raw + 40) == e->fingerprint;
}

/* The filter has said no: remember that as far as it holds for later packets or hooks. */
static __always_inline void decide_against(u64 skb, struct observation *s, struct filter *f)
{
    if (f->packet_bound)
        return;
    if (!(s->nfct & NFCT_POINTER) && s->hook != NO_HOOK)
        pass_over(skb, s->netns, s->pf, stage_of(s->hook, s->returned));
    else if (s->has_flow && is_settled(s->nfct))
        cache_unwanted(s->nfct);
}

static __always_inline struct tracked_skb *move_on(struct tracked_skb *e, struct observation *s)
{
    if (s->hook != NO_HOOK)
        e->stage = stage_of(s->hook, s->returned);
    else if (s->netns && s->netns != e->netns)
        e->stage = 0; /* it came to a device's or a bridge's hook: those of IP are before it */
    if (s->netns)
        e->netns = s->netns;
    else
        s->netns = e->netns; /* TCP has taken the device off: it is where it was */
    return e;
}

/* An ICMP error about a connection: NAT changes its header in the middle of a hook, by other ways than nf_nat_manip_pkt. */
static __always_inline int is_related(u64 nfct)
{
    u8 info = nfct & ~NFCT_POINTER;
    return info == 1 || info == 4; /* IP_CT_RELATED, IP_CT_RELATED_REPLY */
}

/* The entry of the packet in skb, new if the filter wants it now; NULL if nobody does. The caller has set nfct, hook, pf,
 * returned, netns, in, out; all else in *s is filled here. unseen = 1: the header need not be looked at again. */
static __always_inline struct tracked_skb *track(struct call *c, struct sk_buff *skb, struct observation *s, u8 unseen)
{
    u64 key = (u64)skb;
    struct tracked_skb *e = tracked_recently(key, s);
    int zero = 0, going;
    struct filter *f = filters.lookup(&zero);

    if (unseen && !is_related(s->nfct) && may_be_short(e, s) && steps_on(e, s) && same_place(&e->emitted, s)) {
        s->same = 1;
        return move_on(e, s);
    }
    if (!f)
        return 0;
    s->has_flow = 0;
    if (!e && !(s->nfct & NFCT_POINTER) && !ports_may_match(c, skb, f)) {
        decide_against(key, s, f);
        return 0;
    }
    if (!parse_packet(c, skb, &s->packet, &s->tuple[HEADER], s->raw))
        return 0;
    going = e && is_same_packet(e, s);
    s->same = going && may_be_short(e, s) && same_place(&e->emitted, s) && e->emitted.header == header_sum(&s->tuple[HEADER]) &&
              e->emitted.shape == s->packet.shape;
    if (s->same)
        return move_on(e, s);
    s->has_flow = read_flow(s->nfct, &s->tuple[ORIG]);
    if (going) {
        if (!e->fingerprint)
            e->fingerprint = s->packet.fingerprint; /* a fragment has none; the last one's buffer becomes that of the whole packet */
        return move_on(e, s);
    }
    if (!filter_wants(f, s)) {
        if (e && in_tunnel(c, skb, e, s))
            return 0;
        if (e)
            tracked_skbs.delete(&key);
        decide_against(key, s, f);
        return 0;
    }
    e = begin(key, s);
    return e ? move_on(e, s) : 0;
}

/* The entry of a packet that a probe outside the hooks sees: a socket, a drop. Fills *s. */
static __always_inline struct tracked_skb *track_outside_hook(struct call *c, struct sk_buff *skb, struct observation *s)
{
    struct net_device *dev = READ(c, skb, dev);

    if (!s)
        return 0;
    s->nfct = READ(c, skb, _nfct);
    s->hook = NO_HOOK;
    s->pf = 0;
    s->returned = 0;
    s->by_loopback = 0;
    s->netns = netns_of_skb(c, skb);
    s->in = dev ? READ(c, dev, ifindex) : 0;
    s->out = 0;
    return track(c, skb, s, 0);
}
