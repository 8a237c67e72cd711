/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Drops: the tracepoint skb:kfree_skb has the packet, the code that freed it, and (since 5.17) the reason.
 *
 * A packet that is dropped before any other probe is filtered here. The entry of a dropped packet is marked dead, because its
 * address may belong to another packet at once. */

/* The id of the cgroup of the socket that a packet reached, or of the one that sent it; 0 = not known. */
static __always_inline u64 drop_cgroup(struct call *c, struct tracked_skb *e, struct sk_buff *skb)
{
    struct sock *sk;

    if (e->flags & FLAG_AT_SOCKET)
        return e->cgroup;
    sk = READ(c, skb, sk);
    return sk && is_ip_socket(c, sk) ? socket_cgroup(c, sk) : 0;
}

/* arg: skb, location, reason */
static __always_inline int drop_entered(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct net_device *dev;
    struct tracked_skb *e;
    struct reserved r;
    struct observation *s = observation_of(c);
    u16 protocol = READ(c, skb, protocol);
    int no_room;
    u64 cgroup;

    if (protocol != bpf_htons(ETH_IP) && protocol != bpf_htons(ETH_IPV6))
        return 0;
    no_room = take_full_table();
    e = track_outside_hook(c, skb, s, PARSED);
    if (!e)
        return 0;
    e->dead = 1;
    count_shed_failure(e);
    cgroup = drop_cgroup(c, e, skb);
    r = begin_event(c, e, EVENT_DROP, skb, s);
    if (!r.out)
        return 0;
    if (r.whole) {
        dev = READ(c, skb, dev);
        write_names(c, r.whole, dev, 0);
    }
    r.out->object = c->arg[1];
    r.out->manip = (e->filtered ? DROP_FILTERED : 0) | (e->lookup == LOOKUP_REFUSED ? DROP_LOOKUP : 0);
    __builtin_memcpy(r.out->table, &cgroup, sizeof(cgroup));
#ifdef DROP_REASONS
    r.out->reason = c->arg[2];
#endif
    submit_event(r);
    if (no_room)
        write_full_table(e);
    return 0;
}

PROBE_ENTRY(drop)
