/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Rules of nftables that may steal a packet: `fwd` sends it out by another device.
 *
 * __nft_trace_packet is called after that, and the packet may have been freed by then. If no other rule of the run acted
 * before, the packet has not been identified. So these functions have probes at entry. They are only called for packets that
 * meet such a rule, so other packets have no cost. */

#if defined(HAVE_nft_pktinfo)

/* Stores the packet of a run, by the run's packet info, until its rule is traced. */
static __always_inline void save_entered(u64 pkt, u64 packet)
{
    struct nft_open *open = nft_open_here();
    u64 at;

    if (!open)
        return;
    at = open->entered++ & (NFT_RUNS - 1);
    open->entered_pkt[at] = pkt;
    open->entered_packet[at] = packet;
    open->entered_until[at] = bpf_jiffies64() + NFT_RUN_TICKS;
}

/* The entry of the packet that a rule of this run has stolen; NULL = not known, or the address has another packet now. */
static __always_inline struct tracked_skb *stolen_in_run(u64 pkt, u64 skb)
{
    struct nft_open *open = nft_open_here();
    struct tracked_skb *e = find_tracked(skb);
    u64 packet = 0;

    if (!open || !e)
        return 0;
#pragma unroll
    for (int i = 0; i < NFT_RUNS; i++) {
        if (open->entered_pkt[i] == pkt && bpf_jiffies64() <= open->entered_until[i]) {
            packet = open->entered_packet[i];
            open->entered_pkt[i] = 0;
        }
    }
    return packet && e->packet == packet ? e : 0;
}

/* It is not known yet whether the packet will be stolen, so the event has no verdict: it has the header and the hook. In the
 * hooks of IP other events have these.
 *
 * arg: packet info */
static __always_inline int nft_fwd_entered(struct call *c)
{
    struct nft_pktinfo *pkt = (void *)c->arg[0];
    struct sk_buff *skb = READ(c, pkt, skb);
    struct nf_hook_state *state;
    struct tracked_skb *e;
    struct reserved r;
    struct observation *s;
    struct hook_step step;

    if (in_negative_cache(c, READ(c, skb, _nfct)))
        return 0;
    state = CHAIN_STATE(c, pkt);
    s = observation_of(c);
    step = observe_in_hook(c, skb, state, s);
    if (!s || step.unwanted)
        return 0;
    e = track_in_hook(c, skb, state, step, UNKNOWN_PRIORITY, s);
    if (!e)
        return 0;
    save_entered((u64)pkt, e->packet);
    if (s->hook != NO_HOOK || drops_only_excludes(e, s->nfct))
        return 0;
    r = begin_hook_event(c, e, EVENT_HOOK, skb, s, state);
    if (!r.out)
        return 0;
    r.out->hook = READ(c, state, hook);
    r.out->verdict = NO_VERDICT;
    submit_event(r);
    return 0;
}

#define nft_fwd_to_entered nft_fwd_entered
PROBE_ENTRY(nft_fwd)
PROBE_ENTRY(nft_fwd_to)
#endif
