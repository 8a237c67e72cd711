/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Programs of sk_lookup, which choose the socket of a packet, or refuse it, instead of the search for a listener.
 *
 * inet_lookup_run_sk_lookup runs them: it returns the socket that they chose, -ECONNREFUSED, or NULL if they left the packet to the
 * search. The result is kept with the packet. A refused packet is then dropped as one without a socket: that event says who
 * refused it (core/skb_tracking.h). A chosen socket is written when the packet arrives there (probes/socket.h). The function is only
 * called while such a program is attached in any namespace. */

#define MAX_ERRNO 4095

/* arg: skb, NULL = a search without a packet, as of an ICMP error */
static __always_inline int lookup4_keep(struct call *c)
{
    return c->arg[0] != 0;
}

static __always_inline int lookup4_returned(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct observation *s;
    struct tracked_skb *e;

    if (!skb || !c->ret)
        return 0;
    s = observation_of(c);
    if (s)
        s->whole = 0;
    e = track_outside_hook(c, skb, s, PARSED);
    if (e)
        e->lookup = c->ret >= (u64)-MAX_ERRNO ? LOOKUP_REFUSED : LOOKUP_CHOSE;
    return 0;
}

#define lookup6_keep lookup4_keep
#define lookup6_returned lookup4_returned

PROBE_RETURN(lookup4)
PROBE_RETURN(lookup6)
