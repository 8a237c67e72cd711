/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* nftables: nft_do_chain runs one base chain (and the chains that it jumps to) and returns its verdict. */

#ifdef HAVE_nft_pktinfo
/* struct nft_pktinfo had an xt_action_param until 5.14, when it got a state pointer of its own
 * (kernel commit 897389de4828, "netfilter: nf_tables: remove xt_action_param from nft_pktinfo"). */
#ifdef HAVE_nft_pktinfo_state
#define CHAIN_STATE(c, pkt) ((struct nf_hook_state *)READ(c, pkt, state))
#else
#define CHAIN_STATE(c, pkt) ((struct nf_hook_state *)READ(c, pkt, xt_state))
#endif

#define PEEK_BITS(p, name)                                                                                             \
    ({                                                                                                                 \
        u64 bits_ = 0;                                                                                                 \
        bpf_probe_read_kernel(&bits_, (SHIFT_##name + WIDTH_##name + 7) / 8, (void *)(p) + OFFSET_##name);             \
        bits_ >> SHIFT_##name & ((1ULL << WIDTH_##name) - 1);                                                          \
    })

/* The family of a table, NFPROTO_*. */
static __always_inline u8 nft_family(struct nft_table *table)
{
#ifdef WIDTH_nft_table_family
    return PEEK_BITS(table, nft_table_family);
#else
    return 0;
#endif
}

/* The priority of a base chain in its hook. */
static __always_inline s32 priority_of_chain(u64 chain)
{
#if defined(HAVE_nft_base_chain_chain) && defined(HAVE_nft_base_chain_ops_priority)
    struct nft_base_chain *base = (void *)(chain - OFFSET_nft_base_chain_chain);
    return PEEK(base, ops_priority);
#else
    return UNKNOWN_PRIORITY;
#endif
}

/* arg: packet info, chain */
static __always_inline int chain_keep(struct call *c)
{
    struct nft_pktinfo *pkt = (void *)c->arg[0];
    struct sk_buff *skb = READ(c, pkt, skb);
    return !in_negative_cache(c, READ(c, skb, _nfct));
}

/* The open runs of chains on this CPU, see probes/nftables_rule.h. info: trace info of each, 0 = free. until: jiffies, time
 * after which the end of a run counts as missed. stolen_pkt, stolen_packet: packet info and packet of the run in which the last
 * rule stole the packet. */
#define NFT_RUNS 4
#define NFT_RUN_TICKS 25

struct nft_open {
    u64 info[NFT_RUNS];
    u64 until[NFT_RUNS];
    u64 stolen_pkt, stolen_packet;
    u64 entered_pkt[NFT_RUNS], entered_packet[NFT_RUNS], entered_until[NFT_RUNS], entered; /* see probes/nftables_forward.h */
};
BPF_PERCPU_ARRAY(nft_open_runs, struct nft_open, 1);

static __always_inline struct nft_open *nft_open_here(void)
{
    int zero = 0;
    return nft_open_runs.lookup(&zero);
}

/* Copies a name, at most size - 1 bytes; returns 1 if it was cut. Bytes after the end of a short name are not read. */
static __always_inline u8 write_cut(char *to, u32 size, u64 name)
{
    char next = 0;

    if (bpf_probe_read_kernel_str(to, size, (void *)name) == size)
        bpf_probe_read_kernel(&next, sizeof(next), (void *)(name + size - 1));
    return next != 0;
}

_Static_assert(__builtin_offsetof(struct event, accept_len) % 8 == 0, "a place for 8 bytes");
_Static_assert(__builtin_offsetof(struct event, accept_max) == __builtin_offsetof(struct event, accept_len) + 4, "both halves");

/* Writes table, chain and run. The event is whole: a short one has no space for the chain's name. */
static __always_inline void write_chain(struct event *out, struct event *whole, struct nft_chain *chain, u64 pkt)
{
    struct nft_table *table = PEEK(chain, table);

    out->state = nft_family(table);
    out->object = (u64)chain;
    out->manip = write_cut(out->table, sizeof(out->table), (u64)PEEK(table, name));
    if (whole) {
        out->manip |= write_cut(whole->chain, sizeof(whole->chain), (u64)PEEK(chain, name)) << 1;
        *(volatile u64 *)&whole->accept_len = pkt; /* both halves at once: the verifier allows no shift of a pointer */
    }
}

/* Since 6.7 nft_do_chain frees a packet that it drops, and returns "stolen" with an error in the upper half (kernel:
 * "netfilter: make nftables drops visible in net dropmonitor"). The packet has been freed; its entry shows whether it was this
 * one. */
static __always_inline void write_dropped(struct call *c, u64 skb, struct nf_hook_state *state)
{
    struct tracked_skb *e = find_tracked(skb);
    u8 hook = READ(c, state, hook), of_ip = ip_hook(READ(c, state, pf), hook);
    struct reserved r;

    if (!e || !e->dead || e->netns != netns_of(c, READ(c, state, net)) || (of_ip != NO_HOOK && e->stage > stage_of(of_ip, 0)))
        return;
    r = reserve_whole(e, EVENT_CHAIN);
    if (!r.out)
        return;
    r.out->hook = hook;
    r.out->pf = READ(c, state, pf);
    r.out->verdict = NF_DROP;
    r.out->flags |= FLAG_NO_HEADER;
    write_rejection(r.out, skb, bpf_get_smp_processor_id());
    write_chain(r.out, r.whole, (void *)c->arg[1], c->arg[0]);
    submit_event(r);
}

/* A rule stole the packet (fwd, synproxy). It may have been freed; its run has identified it. */
static __always_inline void write_stolen(struct call *c, u64 skb, struct nf_hook_state *state)
{
    struct nft_open *open = nft_open_here();
    struct tracked_skb *e = find_tracked(skb);
    struct reserved r;

    if (!open || !open->stolen_packet || open->stolen_pkt != c->arg[0])
        return;
    if (!e || e->packet != open->stolen_packet || only_drops())
        return;
    open->stolen_packet = 0;
    r = reserve_whole(e, EVENT_CHAIN);
    if (!r.out)
        return;
    r.out->netns = netns_of(c, READ(c, state, net));
    r.out->hook = READ(c, state, hook);
    r.out->pf = READ(c, state, pf);
    r.out->verdict = NF_STOLEN;
    r.out->flags |= FLAG_NO_HEADER;
    write_chain(r.out, r.whole, (void *)c->arg[1], c->arg[0]);
    submit_event(r);
}

static __always_inline int chain_returned(struct call *c)
{
    struct nft_pktinfo *pkt = (void *)c->arg[0];
    struct nft_chain *chain = (void *)c->arg[1];
    struct sk_buff *skb = READ(c, pkt, skb);
    struct nf_hook_state *state = CHAIN_STATE(c, pkt);
    u8 verdict = c->ret & 255;
    struct tracked_skb *e;
    struct reserved r;
    struct observation *s;
    struct hook_step step;

    if (verdict == NF_STOLEN) {
        if ((u32)c->ret >> 16)
            write_dropped(c, (u64)skb, state);
        else
            write_stolen(c, (u64)skb, state);
        return 0;
    }
#ifdef WATCHES_PROGRAMS
    forget_before((u64)skb, READ(c, state, pf));
#endif
    if (in_negative_cache(c, READ(c, skb, _nfct)))
        return 0;
    s = observation_of(c);
    if (s)
        s->whole = 1; /* for the chain's name */
    step = observe_in_hook(c, skb, state, s);
    if (!s || step.unwanted)
        return 0;
    e = track_in_hook(c, skb, state, step, priority_of_chain((u64)chain), s);
    if (!e || (verdict != NF_DROP && drops_only_excludes(e, s->nfct)))
        return 0;
    r = begin_hook_event(c, e, EVENT_CHAIN, skb, s, state);
    if (!r.out)
        return 0;
    r.out->hook = READ(c, state, hook);
    r.out->verdict = verdict;
    if (verdict == NF_DROP)
        write_rejection(r.out, (u64)skb, bpf_get_smp_processor_id());
    write_chain(r.out, r.whole, chain, c->arg[0]);
    submit_event(r);
    return 0;
}

PROBE_RETURN(chain)
#endif
