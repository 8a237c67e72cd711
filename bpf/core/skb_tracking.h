/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Tracking of packets by the address of their socket buffer.
 *
 * A packet is tracked from the first event in which it, or its connection's original or reply tuple, matches the filter.
 * From then on the address of its socket buffer is the key of its entry in `tracked_skbs`: after DNAT, through veth into
 * another namespace, and for its clones, independent of its headers.
 *
 * An address alone is not an identity: buffers are freed without any event, and the next packet may get the same address. There
 * is no cheap, reliable place to see every free. So an entry is only valid if the event continues the packet's path:
 *
 *   - in the same namespace, hooks come in order: PREROUTING or OUTPUT, then INPUT or FORWARD, then POSTROUTING. `stage`
 *     increases with each; an event with a lower stage belongs to another packet, or to this one on its next arrival. None of
 *     two hooks of one stage follows the other, nor POSTROUTING an INPUT: IPVS, which sends on what INPUT received, is followed.
 *   - after a hook of a device or a bridge the fingerprint decides: a rule there may have sent the packet away (fwd), and it
 *     was freed. OUTPUT follows none of them.
 *   - inside a hook, functions run in the order of their priorities. An event whose priority is not higher than the last one's
 *     may belong to another packet, if the end of this one was not seen: the fingerprint decides. It also decides where the
 *     priority is not known.
 *   - an arrival is PREROUTING (INPUT or FORWARD if PREROUTING has no functions) in another namespace, by veth, or in the
 *     same namespace by loopback. The packet is the same if the values that NAT and routing do not change are the same: IP
 *     id, and sequence number or first payload bytes (the fingerprint).
 *   - a packet that a socket has received passes no further hook.
 *   - elsewhere (socket, drop), and for a new copy, the fingerprint decides.
 *   - in a tunnel (VXLAN, as flannel uses between nodes) the buffer begins with the outer packet's header. The entry is kept
 *     while the packet's own header follows that one; tracking continues where the packet leaves the tunnel, if that is on
 *     this machine. */

/* The last whole event of a packet, and the rewrite reported since. While this is unchanged, the next events can be short. */
struct emitted {
    u64 header; /* header_sum of the tuple */
    u64 nfct;   /* UNSETTLED while the connection's tuples may still change */
    u32 netns;
    u32 in, out; /* interfaces with names in that event */
    u32 shape;   /* enum header_shape */
};

#define UNSETTLED (~0ULL)

/* Whether events of a packet are left out. It is counted when its first event is left out: of most packets none would be
 * written in any case (drops_only). */
enum shed {
    NOT_SHED = 0,
    SHED = 1,           /* and counted */
    SHED_UNCOUNTED = 2, /* not counted yet */
};

enum lookup { LOOKUP_CHOSE = 1, LOOKUP_REFUSED = 2 };

struct tracked_skb {
    u64 packet;
    u64 until; /* jiffies: end of validity of a copy that has not been seen yet */
    u32 netns; /* namespace where it was last seen, 0 = a copy that has not been seen yet */
    u32 fingerprint;
    u16 ident;
    u16 hops;
    u8 stage;
    u8 flags;
    u8 synack; /* enum synack, or-ed: how this packet, a SYN, was answered */
    u8 dead;   /* 1 = dropped and freed: the address is no longer valid */
    s32 priority;  /* of the last function in this stage with a known priority, else UNKNOWN_PRIORITY */
    u32 resent_in; /* namespace where IPVS sent it on, as if it began there */
    u8 snapped;    /* 1 = its bytes have been written, see core/payload.h */
    u8 shed;   /* 1 = it is tracked, but no event of it is written */
    u8 opens;      /* 1 = it opens a connection, or answers a packet that does: see drops_only_excludes */
    u8 part;       /* 1 = its last whole event was of a fragment: at the next event its buffer may hold the whole packet */
    u8 hook;       /* of IP, the last one in this namespace; NO_HOOK = only hooks of devices and bridges */
    u8 failures_only; /* enum shed: if it opens a connection, at most its failure is written */
    u8 filtered;   /* 1 = the socket that it reached has a filter of its own */
    u8 back_in;    /* hook to which a queue gave it back before the return of that hook was seen, + 1; see probes/nfqueue.h */
    u8 lookup;     /* enum lookup: what programs of sk_lookup decided about it */
    u8 all_events; /* 1 = it began without --drops-only */
    u64 cgroup;    /* id of the cgroup of the socket that it reached, 0 = none yet, or not known */
    struct emitted emitted;
};

BPF_TABLE("lru_hash", u64, struct tracked_skb, tracked_skbs, 32768);

/* Time, in jiffies, when tracking last began at an address with this hash. Most packets need no look-up in `tracked_skbs` after
 * this check. A packet that waits in a queue for more than RECENT_TICKS jiffies is tracked as a new one. */
#define RECENT_PLACES 4096
#define RECENT_TICKS 30000
BPF_ARRAY(recent, u64, RECENT_PLACES);

/* The entry for a packet's address, which may belong to an earlier packet. */
static __always_inline struct tracked_skb *find_tracked(u64 skb)
{
    return tracked_skbs.lookup(&skb);
}

static __always_inline int same_fingerprint(struct tracked_skb *e, struct observation *s)
{
    return e->ident == s->packet.ident && e->fingerprint == s->packet.fingerprint;
}

/* The store and load turn the pointer into a number: the verifier allows no arithmetic on a pointer, but a value loaded from
 * memory is a number for it. */
static __always_inline u64 *recent_of(u64 skb, struct observation *s)
{
    int place;

    *(volatile u64 *)&s->address = skb;
    place = (*(volatile u64 *)&s->address >> 8 ^ *(volatile u64 *)&s->address >> 20) & (RECENT_PLACES - 1);
    return recent.lookup(&place);
}

static __always_inline struct tracked_skb *tracked_recently(u64 skb, struct observation *s)
{
    struct tracked_skb *e = 0;
    u64 *when;

    if (s->tracked == skb)
        return find_tracked(skb);
    when = recent_of(skb, s);
    if (when && bpf_jiffies64() - *when <= RECENT_TICKS)
        e = find_tracked(skb);
    if (e)
        s->tracked = skb;
    return e;
}

static __always_inline void track_recent(u64 skb, struct observation *s)
{
    u64 *when = recent_of(skb, s);
    if (when)
        *when = bpf_jiffies64();
}

/* As same_fingerprint. An entry that began with a fragment has no fingerprint before the packet is reassembled. */
static __always_inline int may_be_same_packet(struct tracked_skb *e, struct observation *s)
{
    return e->ident == s->packet.ident && (!e->fingerprint || e->fingerprint == s->packet.fingerprint);
}

/* 1 if this event is inside the hook in which e's packet was last seen. */
static __always_inline int in_same_hook(struct tracked_skb *e, struct observation *s)
{
    return e->netns == s->netns && s->hook != NO_HOOK && s->hook == e->hook && !s->returned && stage_of(s->hook, 0) == e->stage;
}

/* 1 if a packet that was at hook `from` may come to this hook next, in the same namespace. */
static __always_inline int may_follow(u8 from, u8 hook)
{
    if (from == hook)
        return 1;
    if (from == NO_HOOK)
        return hook != OUTPUT;
    return stage_of(hook, 0) > stage_of(from, 1) && !(from == INPUT && hook == POSTROUTING);
}

/* 1 if this is the next step of e's packet through one namespace. */
static __always_inline int steps_on(struct tracked_skb *e, struct observation *s)
{
    if (e->dead || e->netns != s->netns || s->hook == NO_HOOK || e->flags & FLAG_AT_SOCKET)
        return 0;
    if (e->hook == NO_HOOK || !may_follow(e->hook, s->hook))
        return 0;
    return stage_of(s->hook, s->returned) > e->stage || (in_same_hook(e, s) && s->priority > e->priority);
}

/* 1 if entry e, found by this packet's address, belongs to this packet. */
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
    if (in_same_hook(e, s))
        return may_be_same_packet(e, s);
    if (e->netns == s->netns && e->hook == NO_HOOK)
        return may_follow(NO_HOOK, s->hook) && may_be_same_packet(e, s);
    if (s->hook == OUTPUT || s->hook == POSTROUTING || (e->netns == s->netns && !s->by_loopback))
        return 0;
    return same_fingerprint(e, s);
}

/* A hash of a header: of its addresses, each folded to 64 bits, and its ports. */
static __always_inline u64 sum_of_header(u64 src, u64 dst, u64 ports)
{
    return src * 0x9e3779b97f4a7c15ULL + dst * 0xc2b2ae3d27d4eb4fULL + ports * 0x165667b19e3779f9ULL;
}

static __always_inline u64 header_sum(const struct tuple *t)
{
    u64 src = t->src.words[0] ^ t->src.words[1], dst = t->dst.words[0] ^ t->dst.words[1];

    return sum_of_header(src, dst, (u64)t->sport << 16 | t->dport);
}

#define PLAIN_IP 20 /* length of an IPv4 header without options */

/* The first words of a plain header, as numbers of a little-endian CPU; the addresses and ports as they are on the wire.
 *
 * 0: version and length, TOS, total length, id, fragment    1: TTL, protocol, checksum, source address
 * 2: destination address, ports                             3: TCP: sequence and acknowledgement number; UDP: its rest, payload */
#define HEADER_WORDS 4
#define IS_PLAIN(h) (((h)[0] & 0xff) == 0x45 && !((h)[0] >> 48 & bpf_htons(0x3fff)))
#define MAPPED(address) ((u64)(address) << 32 | bpf_htonl(0xffff)) /* the second word of ::ffff:a.b.c.d */

/* 1 if the packet's header, a plain one, is that of its last whole event, or what the rewrite reported since has made of it. Then
 * s->tuple[HEADER] has it, s->packet what identifies the packet, and the header need not be parsed. Plain: TCP or UDP in IPv4,
 * without IP options, no fragment. The transport header was whole in the last whole event. */
static __always_inline int has_same_plain_header(struct call *c, struct sk_buff *skb, struct tracked_skb *e, struct observation *s)
{
    u64 at = (u64)READ(c, skb, head) + READ(c, skb, network_header), src, dst, ports;
    struct tuple *t = &s->tuple[HEADER];
    u64 h[HEADER_WORDS];
    u8 protocol;

    if (e->emitted.shape != SHAPE_WHOLE || copy_words(c, h, sizeof(h), at) || !IS_PLAIN(h))
        return 0;
    protocol = h[1] >> 8;
    if (protocol != TCP && protocol != UDP)
        return 0;
    src = MAPPED(h[1] >> 32);
    dst = MAPPED(h[2]);
    ports = bpf_ntohl(h[2] >> 32);
    if (sum_of_header(src, dst, ports) != e->emitted.header)
        return 0;
    s->packet.length = bpf_ntohs(h[0] >> 16);
    s->packet.ident = bpf_ntohs(h[0] >> 32);
    s->packet.fingerprint = protocol == TCP ? bpf_ntohl(h[3]) ^ bpf_ntohl(h[3] >> 32) : h[3] >> 32;
    t->protocol = protocol;
    t->family = 4;
    t->has_ports = 1;
    t->src.words[0] = t->dst.words[0] = 0;
    t->src.words[1] = src;
    t->dst.words[1] = dst;
    t->sport = ports >> 16;
    t->dport = ports;
    return 1;
}

/* 1 if the next event of e's packet may be short. Not for copies: they are concurrent, so "the last whole event" would be
 * ambiguous. Not for fragments: they are reassembled in a hook that writes no event, in the buffer of the last one. */
static __always_inline int may_be_short(struct tracked_skb *e, struct observation *s)
{
    return e && !s->whole && !e->part && !(e->flags & FLAG_CLONE);
}

/* 1 if this is e's packet with a plain header that is known: at its next place, or after a rewrite. Then packet and header of *s are
 * filled as parse_header does. */
static __always_inline int goes_on_with_plain_header(struct call *c, struct sk_buff *skb, struct tracked_skb *e,
                                                     struct observation *s)
{
    u64 tcp[2]; /* sequence and acknowledgement number; data offset, flags, window */

    if (s->parsed || !may_be_short(e, s) || !has_same_plain_header(c, skb, e, s) || !is_same_packet(e, s))
        return 0;
    s->packet.fragment = s->packet.part = 0;
    s->packet.shape = SHAPE_WHOLE;
    s->packet.seq = s->packet.ack = 0;
    s->packet.tcp_flags = 0;
    if (s->tuple[HEADER].protocol == TCP) {
        if (copy_words(c, tcp, sizeof(tcp), (u64)READ(c, skb, head) + READ(c, skb, network_header) + PLAIN_IP + 4))
            return 0;
        s->packet.seq = bpf_ntohl(tcp[0]);
        s->packet.ack = bpf_ntohl(tcp[0] >> 32);
        s->packet.tcp_flags = tcp[1] >> 8 & 0xff;
    }
    return 1;
}

static __always_inline int same_place(struct emitted *emitted, struct observation *s)
{
    return emitted->netns == s->netns && emitted->nfct == s->nfct && (!s->in || emitted->in == s->in) &&
           (!s->out || emitted->out == s->out);
}

static __always_inline void shed_by_detail(struct tracked_skb *e, u8 detail)
{
    e->shed = detail == NOTHING ? SHED : NOT_SHED;
    e->failures_only = detail == WHOLE ? NOT_SHED : SHED_UNCOUNTED;
}

/* Counts a packet that fails and of which nothing is written, unless it was counted as an opening. Called where it is freed, not
 * for each event: some programs are near the limits of older verifiers. */
static __always_inline void count_shed_failure(struct tracked_skb *e)
{
    if (e->shed && e->failures_only == SHED_UNCOUNTED) {
        e->failures_only = SHED;
        count_lost(FAILURES_SHED);
    }
}

/* 1 if this packet opens a connection and at most its failure is written; called for each other event. The first one left out
 * takes a number, so if the failure is written, it shows the gap: the packet is incomplete. */
static __always_inline int is_shed_opening(struct tracked_skb *e)
{
    if (!e->opens || !e->failures_only)
        return 0;
    if (e->failures_only == SHED_UNCOUNTED) {
        e->failures_only = SHED;
        e->hops++;
        count_lost(OPENINGS_SHED);
    }
    return 1;
}

/* Begins to track the packet. e: the entry of its address, which belongs to an earlier packet, or NULL. It is filled again,
 * which costs a tenth of a new one. */
static __always_inline struct tracked_skb *begin(u64 skb, struct observation *s, struct tracked_skb *e)
{
    if (!e) {
        struct tracked_skb new = {};

        tracked_skbs.update(&skb, &new);
        e = tracked_skbs.lookup(&skb);
        if (!e)
            return 0;
    }
    __builtin_memset(e, 0, sizeof(*e));
    e->packet = bpf_ktime_get_ns() << 8 | (bpf_get_smp_processor_id() & 255);
    e->fingerprint = s->packet.fingerprint;
    e->ident = s->packet.ident;
    e->priority = UNKNOWN_PRIORITY;
    e->hook = NO_HOOK;
    e->all_events = !only_drops();
    e->opens = s->tuple[HEADER].protocol == TCP && s->packet.tcp_flags & (TCP_FLAG_SYN | TCP_FLAG_RST);
    if (nearly_full()) {
        e->shed = SHED;
        count_lost(PACKETS_SHED);
    } else {
        shed_by_detail(e, detail_in_force());
    }
    track_recent(skb, s);
    remove_from_negative_cache(skb, s->nfct);
    return e;
}

static __always_inline u32 inner_fingerprint(u8 protocol, const u8 *h)
{
    return protocol == TCP ? bpf_ntohl(*(u32 *)(h + 4)) ^ bpf_ntohl(*(u32 *)(h + 8)) : *(u32 *)(h + 8);
}

/* 1 if e's packet is inside a tunnel packet in this buffer. At encapsulation the kernel stores the offset of the inner header
 * (skb_reset_inner_headers), and the buffer keeps it through veth, in a bridge and in the other namespace. Only TCP and UDP
 * without IP options or extensions. Overwrites s->raw. */
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
    return s->raw[0] >> 4 == 6 && (s->raw[6] == TCP || s->raw[6] == UDP) &&
           inner_fingerprint(s->raw[6], s->raw + 40) == e->fingerprint;
}

/* Stores the filter's rejection, as far as it is valid for later packets or hooks. */
static __always_inline void decide_against(u64 skb, struct observation *s, struct filter *f)
{
    if (f->packet_bound)
        return;
    if (!(s->nfct & NFCT_POINTER) && s->hook != NO_HOOK)
        pass_over(skb, s->netns, s->pf, stage_of(s->hook, s->returned));
    else if (s->has_flow && has_settled(s->nfct, s->flow.status))
        add_to_negative_cache(s->nfct);
}

static __always_inline struct tracked_skb *move_on(struct tracked_skb *e, struct observation *s)
{
    if (s->hook != NO_HOOK) {
        if (!in_same_hook(e, s) || s->priority > e->priority)
            e->priority = s->priority;
        e->stage = stage_of(s->hook, s->returned);
        e->hook = s->hook;
    } else if (s->netns && s->netns != e->netns) {
        e->stage = 0; /* it is at a hook of a device or a bridge: the hooks of IP follow */
        e->hook = NO_HOOK;
    }
    if (s->netns)
        e->netns = s->netns;
    else
        s->netns = e->netns; /* TCP has removed the device: the namespace is the same as before */
    return e;
}

/* 1 for an ICMP error about a connection: NAT changes its header inside a hook, by other functions than nf_nat_manip_pkt. */
static __always_inline int is_related(u64 nfct)
{
    u8 info = nfct & ~NFCT_POINTER;
    return info == 1 || info == 4; /* IP_CT_RELATED, IP_CT_RELATED_REPLY */
}

/* 1 if the packet in skb, with no entry e and without a connection, is unwanted because of its ports: checked before the rest
 * of *s is read. The caller has set nfct, hook, pf, returned; at a hook also netns. */
static __always_inline int excluded_by_ports(struct call *c, struct sk_buff *skb, struct observation *s, struct tracked_skb *e)
{
    int zero = 0;
    struct filter *f;

    if (e || s->nfct & NFCT_POINTER)
        return 0;
    f = filters.lookup(&zero);
    if (!f || ports_may_match(c, skb, f, 0))
        return 0;
    s->has_flow = 0;
    decide_against((u64)skb, s, f);
    return 1;
}

/* Fills ORIG, REPLY and flow, unless *s still has them from an earlier event of this row and of e's packet. Returns 0 if the
 * packet has no connection. e: its entry, or NULL. */
static __always_inline int fill_flow(struct observation *s, struct tracked_skb *e)
{
    if (e && s->flow_of == e->packet && s->flow.nfct == s->nfct && e->emitted.nfct == s->nfct && e->emitted.netns == s->netns)
        return 1;
    s->flow_of = 0;
    if (!read_flow(s->nfct, &s->tuple[ORIG], &s->flow))
        return 0;
    s->flow.nfct = s->nfct;
    if (e && has_settled(s->nfct, s->flow.status))
        s->flow_of = e->packet;
    return 1;
}

/* As track(), for a packet with a header that must be parsed. arg: skb, s, e */
static __always_inline struct tracked_skb *track_by_header_called(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct observation *s = (void *)c->arg[1];
    struct tracked_skb *e = (void *)c->arg[2];
    u64 key = c->arg[0];
    int zero = 0, going;
    struct filter *f = filters.lookup(&zero);
    u8 wanted;

    if (!f)
        return 0;
    s->has_flow = 0;
    going = goes_on_with_plain_header(c, skb, e, s);
    if (!going) {
        if (!parse_header(c, skb, s))
            return 0;
        going = e && is_same_packet(e, s);
    }
    s->same = going && may_be_short(e, s) && same_place(&e->emitted, s) && e->emitted.header == header_sum(&s->tuple[HEADER]) &&
              e->emitted.shape == s->packet.shape;
    if (s->same)
        return move_on(e, s);
    s->has_flow = fill_flow(s, going ? e : 0);
    if (going) {
        if (!e->fingerprint)
            e->fingerprint = s->packet.fingerprint; /* a fragment has none; the last one's buffer gets the whole packet */
        return move_on(e, s);
    }
    wanted = filter_wants(f, s);
    if (!wanted || !wants_tcp_flags(f, s)) {
        if (e && in_tunnel(c, skb, e, s))
            return 0;
        if (e)
            tracked_skbs.delete(&key);
        if (!wanted)
            decide_against(key, s, f); /* other packets of the connection may have the wanted TCP flags */
        return 0;
    }
    e = begin(key, s, e);
    return e ? move_on(e, s) : 0;
}
FUNCTION(track_by_header)

/* How the header of a tracked packet is read: not at all where the packet takes its next step, because a program at the hook's end
 * reads it; compared with that of its last whole event; parsed. */
enum header_reading { UNREAD, COMPARED, PARSED };

/* The entry of the packet in skb, a new one if the filter selects it now; NULL if the packet is unwanted. e: the entry of its
 * address. reading: a constant. The caller has set nfct, hook, pf, priority, returned, netns, in, out; the rest of *s is filled
 * here. */
static __always_inline struct tracked_skb *track(struct call *c, struct sk_buff *skb, struct observation *s,
                                                 struct tracked_skb *e, enum header_reading reading)
{
    u64 in[] = {(u64)skb, (u64)s, (u64)e};

    s->parsed = reading == PARSED;
    if (reading != PARSED && !is_related(s->nfct) && may_be_short(e, s) && same_place(&e->emitted, s) &&
        (reading == UNREAD ? steps_on(e, s) : has_same_plain_header(c, skb, e, s) && is_same_packet(e, s))) {
        s->same = 1;
        return move_on(e, s);
    }
    return (struct tracked_skb *)CALL(c, track_by_header)(in);
}

/* The entry of a packet at a probe outside the hooks: socket, drop. Fills *s. reading: a constant. */
static __always_inline struct tracked_skb *track_outside_hook(struct call *c, struct sk_buff *skb, struct observation *s,
                                                              enum header_reading reading)
{
    struct net_device *dev;
    struct tracked_skb *e;

    if (!s)
        return 0;
    s->nfct = READ(c, skb, _nfct);
    s->hook = NO_HOOK;
    s->pf = 0;
    s->returned = 0;
    e = tracked_recently((u64)skb, s);
    if (excluded_by_ports(c, skb, s, e))
        return 0;
    dev = READ(c, skb, dev);
    s->priority = UNKNOWN_PRIORITY;
    s->by_loopback = 0;
    s->netns = netns_of_skb(c, skb);
    s->in = dev ? READ(c, dev, ifindex) : 0;
    s->out = 0;
    return track(c, skb, s, e, reading);
}
