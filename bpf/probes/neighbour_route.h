/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Packets that cannot leave: an error route, or a next hop with an unknown link address.
 *
 * __neigh_event_send is only called for a neighbour that is not known to be reachable, ip_error only for error routes. A packet
 * waits at its neighbour for seconds and is dropped there with NEIGH_FAILED. */

/* NUD_*: being resolved; not found. In any other state the packet is sent. */
enum { NUD_INCOMPLETE = 1, NUD_FAILED = 32 };
#define DST_NOREF 1ULL /* the low bit of skb->_skb_refdst */

/* arg: neighbour, skb */
static __always_inline int neighbour_entered(struct call *c)
{
#if defined(HAVE_neighbour_nud_state) && defined(HAVE_neighbour_primary_key)
    struct neighbour *n = (void *)c->arg[0];
    u8 state = PEEK(n, nud_state);
    struct tracked_skb *e;
    struct decision_detail *out;

    if (!c->arg[1] || (state && !(state & (NUD_INCOMPLETE | NUD_FAILED))))
        return 0;
    e = is_still_tracked(c, (void *)c->arg[1], observation_of(c));
    if (!e)
        return 0;
    out = reserve_detail(e, DETAIL_NEIGHBOUR);
    if (!out)
        return 0;
    out->status = state;
#if defined(HAVE_neighbour_tbl) && defined(HAVE_neigh_table_family)
    out->state = PEEK(PEEK(n, tbl), family);
#endif
    /* An IPv4 address has 4 bytes; the bytes after it are not part of the key. */
    if (out->state == AF_INET)
        bpf_probe_read_kernel(out->values, sizeof(out->values[0]), (void *)n + OFFSET_neighbour_primary_key);
    else
        bpf_probe_read_kernel(out->values, sizeof(out->values), (void *)n + OFFSET_neighbour_primary_key);
    submit_detail(out);
#endif
    return 0;
}
PROBE_ENTRY(neighbour)

/* arg: skb */
static __always_inline int no_route_entered(struct call *c)
{
#if defined(HAVE_sk_buff__skb_refdst) && defined(HAVE_dst_entry_error)
    struct sk_buff *skb = (void *)c->arg[0];
    struct dst_entry *dst = (void *)(PEEK(skb, _skb_refdst) & ~DST_NOREF);
    struct tracked_skb *e = is_still_tracked(c, skb, observation_of(c));
    struct decision_detail *out;
    short error;

    if (!e)
        return 0;
    out = reserve_detail(e, DETAIL_ROUTE);
    if (!out)
        return 0;
    error = PEEK(dst, error);
    out->values[0] = error < 0 ? -error : error;
    submit_detail(out);
#endif
    return 0;
}
PROBE_ENTRY(no_route)
