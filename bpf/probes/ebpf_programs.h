/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Packets that eBPF programs at interfaces redirect or rewrite. These probes are only attached where such programs are attached
 * when a run starts.
 *
 * A rewrite is seen by the header before and behind the programs of one interface. Ingress: netif_receive_skb comes before generic
 * XDP and tc; behind them comes the first netfilter hook, before any of its rules, or the socket of a namespace without hooks.
 * Egress: __dev_queue_xmit begins before tc, the tracepoint net_dev_queue is behind it. nftables' egress hook runs between these, so
 * where it is used no rewrite at egress is shown. NAT and IPVS change a packet inside of hooks of IP, never between two of these
 * places.
 *
 * A redirection is seen where the kernel carries it out, with the interface that the program named. */

#ifdef WATCHES_PROGRAMS

/* The header of a packet before the programs of an interface, by the address of its buffer. */
struct before_programs {
    struct tuple header;
    u64 packet;
    u32 ifindex;
    u8 place; /* enum program_place */
    u8 spare[3];
};
BPF_TABLE("lru_hash", u64, struct before_programs, before_programs, 8192);

#define BRIDGE_FAMILY 7
#define NETDEV_FAMILY 5
#define NETDEV_EGRESS 1
#define ONLY_BY_NUMBER 0x7fffffff /* bpf_redirect_info.map_id: the program named an interface, no map */

static __always_inline int holds_ip(struct call *c, struct sk_buff *skb)
{
    u16 protocol = READ(c, skb, protocol);
    return protocol == bpf_htons(ETH_IP) || protocol == bpf_htons(ETH_IPV6);
}

static __always_inline int has_other_ends(const struct tuple *a, const struct tuple *b)
{
    return a->src.words[0] != b->src.words[0] || a->src.words[1] != b->src.words[1] || a->dst.words[0] != b->dst.words[0] ||
           a->dst.words[1] != b->dst.words[1] || (a->has_ports && b->has_ports && (a->sport != b->sport || a->dport != b->dport));
}

/* Chains of a bridge run before the first hook that is seen to begin, and may rewrite the header, too: then nothing is said of
 * programs. */
static __always_inline void forget_before(u64 skb, u8 pf)
{
    if (pf == BRIDGE_FAMILY)
        before_programs.delete(&skb);
}

/* Keeps the header of e's packet, which is in *s, until it is behind the programs of its device. */
static __always_inline void keep_before(u64 skb, struct tracked_skb *e, struct observation *s, u8 place)
{
    struct before_programs before = {};

    if (s->packet.part || e->flags & FLAG_CLONE)
        return;
    before.header = s->tuple[HEADER];
    before.packet = e->packet;
    before.ifindex = s->in;
    before.place = place;
    before_programs.update(&skb, &before);
}

/* Writes the name of an interface of the namespace of this device, by number. Interfaces are in 256 lists by the lower bits of
 * their numbers. */
static __always_inline void write_name_of(struct call *c, char *to, struct net_device *dev, u32 ifindex)
{
#if defined(HAVE_net_dev_index_head) && defined(HAVE_net_device_index_hlist) && defined(HAVE_hlist_head_first) &&              \
    defined(HAVE_hlist_node_next)
    struct net *net = READ(c, dev, nd_net_net);
    struct hlist_head *lists = PEEK(net, dev_index_head);
    struct hlist_node *node = lists ? PEEK(&lists[ifindex & 255], first) : 0;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        struct net_device *found = (void *)node - OFFSET_net_device_index_hlist;

        if (!node)
            return;
        if (PEEK(found, ifindex) == ifindex) {
            bpf_probe_read_kernel(to, sizeof(found->name), &found->name);
            return;
        }
        node = PEEK(node, next);
    }
#endif
}

/* Writes the event of a rewrite: its header is that before, conntrack's original tuple is the header now. */
static __always_inline void write_program_rewrite(struct call *c, struct sk_buff *skb, struct tracked_skb *e, struct observation *s,
                                                  struct before_programs *before)
{
    struct net_device *dev = READ(c, skb, dev);
    u8 has_flow = s->has_flow;
    struct reserved r = reserve_whole(e, EVENT_REWRITE);

    if (r.out) {
        s->has_flow = 0;
        write_observation(r.whole, e, s);
        s->has_flow = has_flow;
        write_tuple(r.whole->src, r.whole->dst, &r.whole->sport, &r.whole->dport, &before->header);
        write_tuple(r.whole->orig_src, r.whole->orig_dst, &r.whole->orig_sport, &r.whole->orig_dport, &s->tuple[HEADER]);
        r.out->mark = READ(c, skb, mark);
        r.out->state = before->place;
        if (dev && before->place == PLACE_TC_EGRESS) {
            r.out->out_ifindex = READ(c, dev, ifindex);
            write_name(c, r.whole->out_name, dev);
        } else if (dev) {
            r.out->in_ifindex = before->ifindex;
            write_name_of(c, r.whole->in_name, dev, before->ifindex);
            if (READ(c, dev, ifindex) != before->ifindex) { /* that of a VLAN, or the bridge */
                r.whole->accept_len = READ(c, dev, ifindex);
                write_name(c, r.whole->chain, dev);
            }
        }
        submit_event(r);
    }
    e->emitted.netns = 0; /* the next event is whole, with the connection */
}

/* Compares the header of e's packet, which is in *s, with that before the programs. place: where it must have been kept, or
 * PLACE_UNKNOWN. */
static __always_inline void compare_with_before(struct call *c, struct sk_buff *skb, struct tracked_skb *e, struct observation *s,
                                                u8 place)
{
    u64 key = (u64)skb;
    struct before_programs *before = before_programs.lookup(&key);

    if (!before)
        return;
    if (before->packet == e->packet && (!place || before->place == place) && !s->packet.part &&
        before->header.protocol == s->tuple[HEADER].protocol && before->header.family == s->tuple[HEADER].family &&
        has_other_ends(&before->header, &s->tuple[HEADER]) && !drops_only_excludes(e, s->nfct))
        write_program_rewrite(c, skb, e, s, before);
    before_programs.delete(&key);
}

/* 1 if the header has neither options nor extensions, in which the stack itself finds another destination (source routing). */
static __always_inline int has_no_options(struct call *c, struct sk_buff *skb, struct observation *s)
{
    u8 h[8] = {};

    if (bpf_probe_read_kernel(h, sizeof(h), (void *)READ(c, skb, head) + READ(c, skb, network_header)))
        return 0;
    return h[0] == 0x45 || (h[0] >> 4 == 6 && h[6] == s->tuple[HEADER].protocol);
}

/* As compare_with_before, at the socket that e's packet has reached. Where no hook has run, the stack has read the header. */
static __always_inline void compare_at_socket(struct call *c, struct sk_buff *skb, struct tracked_skb *e, struct observation *s)
{
    u64 key = (u64)skb;

    if (!before_programs.lookup(&key))
        return;
    if (has_no_options(c, skb, s))
        compare_with_before(c, skb, e, s, PLACE_TC_INGRESS);
    else
        before_programs.delete(&key);
}

/* A packet behind the programs. place: which. */
static __always_inline int behind_programs(struct call *c, struct sk_buff *skb, u8 place)
{
    struct observation *s = observation_of(c);
    u64 key = (u64)skb;
    struct tracked_skb *e;

    if (!s || !before_programs.lookup(&key))
        return 0;
    e = find_tracked(key);
    s->nfct = READ(c, skb, _nfct);
    s->has_flow = 0;
    if (!e || e->dead || !parse_header(c, skb, s) || !same_fingerprint(e, s)) {
        before_programs.delete(&key);
        return 0;
    }
    s->netns = e->netns;
    s->in = s->out = 0;
    compare_with_before(c, skb, e, s, place);
    return 0;
}

/* 1 if the packet of a device, which has no entry and no connection, is unwanted because of its ports. */
static __always_inline int arrival_excluded(struct call *c, struct sk_buff *skb, struct tracked_skb *e, u64 nfct)
{
    int zero = 0;
    struct filter *f;

    if (e || nfct & NFCT_POINTER)
        return 0;
    f = filters.lookup(&zero);
    return !f || !ports_may_match(c, skb, f, 1);
}

/* arg: skb */
static __always_inline int arrival_entered(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct observation *s = observation_of(c);
    struct net_device *dev = READ(c, skb, dev);
    struct tracked_skb *e;

    if (!s || !dev || !holds_ip(c, skb))
        return 0;
    s->at_data = 1;
    s->nfct = READ(c, skb, _nfct);
    s->hook = NO_HOOK;
    s->pf = 0;
    s->returned = 0;
    s->priority = UNKNOWN_PRIORITY;
    s->by_loopback = 0;
    s->netns = netns_of_skb(c, skb);
    s->in = READ(c, dev, ifindex);
    s->out = 0;
    e = tracked_recently(c->arg[0], s);
    if (arrival_excluded(c, skb, e, s->nfct))
        return 0;
    e = track(c, skb, s, e, PARSED);
    if (e)
        keep_before(c->arg[0], e, s, PLACE_TC_INGRESS);
    return 0;
}
PROBE_ENTRY(arrival)

/* arg: skb, state */
static __always_inline int hook_begin_entered(struct call *c)
{
    struct nf_hook_state *state = (void *)c->arg[1];
    u64 key = c->arg[0];

    if (READ(c, state, pf) == NETDEV_FAMILY && READ(c, state, hook) == NETDEV_EGRESS) {
        before_programs.delete(&key);
        return 0;
    }
    return behind_programs(c, (void *)key, PLACE_TC_INGRESS);
}
PROBE_ENTRY(hook_begin)

/* arg: skb */
static __always_inline int transmit_entered(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct observation *s = observation_of(c);
    struct tracked_skb *e;

    if (!s || !holds_ip(c, skb) || in_negative_cache(c, READ(c, skb, _nfct)))
        return 0;
    e = track_outside_hook(c, skb, s, PARSED);
    if (e)
        keep_before(c->arg[0], e, s, PLACE_TC_EGRESS);
    return 0;
}
PROBE_ENTRY(transmit)

/* arg: skb */
static __always_inline int outgoing_entered(struct call *c)
{
    return behind_programs(c, (void *)c->arg[0], PLACE_TC_EGRESS);
}
PROBE_ENTRY(outgoing)

/* Where a program redirects a packet to, by number; 0 = it is not known. */
struct redirect_target {
    u32 ifindex, flags;
};

static __always_inline struct redirect_target redirect_target_here(int is_xdp)
{
    struct redirect_target to = {};
#ifdef HAVE_bpf_net_context_ri_tgt_index
    struct task_struct *task = (void *)bpf_get_current_task();
    struct bpf_net_context *context = PEEK(task, bpf_net_context);

    if (!context || (is_xdp && PEEK(context, ri_map_id) != ONLY_BY_NUMBER))
        return to;
    to.ifindex = PEEK(context, ri_tgt_index);
    to.flags = PEEK(context, ri_flags);
#elif defined(HAVE_bpf_redirect_info_tgt_index) && defined(ADDRESS_bpf_redirect_info) && defined(ADDRESS___per_cpu_offset)
    u64 offset = 0;
    struct bpf_redirect_info *info;

    bpf_probe_read_kernel(&offset, sizeof(offset), (void *)ADDRESS___per_cpu_offset + 8 * (u64)bpf_get_smp_processor_id());
    info = (void *)(ADDRESS_bpf_redirect_info + offset);
    if (!offset)
        return to;
#ifdef HAVE_bpf_redirect_info_map_id
    if (is_xdp && PEEK(info, map_id) != ONLY_BY_NUMBER)
        return to;
#else
    if (is_xdp && PEEK(info, map))
        return to;
#endif
    to.ifindex = PEEK(info, tgt_index);
    to.flags = PEEK(info, flags);
#endif
    return to;
}

/* enum redirect_way of the flags of bpf_redirect(). Those for neighbour and peer were bits 1 and 2, and are bits 16 and 17 since
 * kernel commit 09d88791c7cd ("bpf: Make sure internal and UAPI bpf_redirect flags don't overlap", 6.12); programs may only set
 * bit 0. */
static __always_inline u8 redirect_ways(u32 flags)
{
    return (flags & 1) | ((flags | flags >> 15) & (REDIRECT_NEIGHBOUR | REDIRECT_PEER));
}

/* Where the program that runs on this packet is attached: its header was kept before the programs of this device. */
static __always_inline u8 running_at(u64 skb, struct tracked_skb *e, u32 ifindex)
{
    struct before_programs *before = before_programs.lookup(&skb);
    return before && before->packet == e->packet && before->ifindex == ifindex ? before->place : PLACE_UNKNOWN;
}

/* A packet that is redirected, or copied. program: its id, 0 = not known. place: where it runs, PLACE_UNKNOWN = as was kept. */
static __always_inline int redirected(struct call *c, struct sk_buff *skb, struct redirect_target to, u8 ways, u8 place, u32 program)
{
    struct observation *s = observation_of(c);
    struct net_device *dev = READ(c, skb, dev);
    u64 key = (u64)skb;
    struct tracked_skb *e;
    struct reserved r;

    if (!s || !dev || !holds_ip(c, skb))
        return 0;
    s->whole = 1;
    e = track_outside_hook(c, skb, s, PARSED);
    if (!e)
        return 0;
    if (!place)
        place = running_at(key, e, s->in);
    if (!(ways & REDIRECT_COPY)) {
        if (place)
            compare_with_before(c, skb, e, s, PLACE_UNKNOWN);
        else
            before_programs.delete(&key);
        e->stage = 0; /* it may come to each hook of this namespace again */
        e->hook = NO_HOOK;
    }
    if (drops_only_excludes(e, s->nfct))
        return 0;
    if (place == PLACE_TC_EGRESS) {
        s->out = s->in;
        s->in = 0;
    }
    r = begin_event(c, e, EVENT_REDIRECT, skb, s);
    if (r.whole) {
        if (place == PLACE_TC_EGRESS)
            write_names(c, r.whole, 0, dev);
        else
            write_names(c, r.whole, dev, 0);
        r.out->object = program;
        r.out->manip = ways;
        r.out->state = place;
        r.whole->accept_len = to.ifindex;
        if (to.ifindex)
            write_name_of(c, r.whole->chain, dev, to.ifindex);
    }
    if (r.out)
        submit_event(r);
    e->emitted.netns = 0;
    return 0;
}

/* arg: skb */
static __always_inline int redirect_entered(struct call *c)
{
    struct redirect_target to = redirect_target_here(0);
    return redirected(c, (void *)c->arg[0], to, redirect_ways(to.flags), PLACE_UNKNOWN, 0);
}
PROBE_ENTRY(redirect)

/* arg: skb, number of the target, flags */
static __always_inline int clone_redirect_entered(struct call *c)
{
    struct redirect_target to = {.ifindex = c->arg[1], .flags = c->arg[2]};
    return redirected(c, (void *)c->arg[0], to, (to.flags & 1) | REDIRECT_COPY, PLACE_UNKNOWN, 0);
}
PROBE_ENTRY(clone_redirect)

/* arg: skb, program */
static __always_inline int xdp_redirect_entered(struct call *c)
{
    u32 program = 0;
#if defined(HAVE_bpf_prog_aux) && defined(HAVE_bpf_prog_aux_id)
    struct bpf_prog *prog = (void *)c->arg[1];
    struct bpf_prog_aux *aux = PEEK(prog, aux);

    program = aux ? PEEK(aux, id) : 0;
#endif
    return redirected(c, (void *)c->arg[0], redirect_target_here(1), 0, PLACE_XDP, program);
}
PROBE_ENTRY(xdp_redirect)
#endif
