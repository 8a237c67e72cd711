/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The filter, as map values: a change of the filter needs no recompilation.
 *
 * A packet matches when one of its tuples matches: its own header, or its connection's original or reply tuple. Otherwise
 * the part of a connection after DNAT would be lost. tracer/kernel/filter_maps.py fills these structures. */

/* Key of the set of wanted hosts, a longest-prefix trie: one look-up for each address, for any number of networks. */
struct network {
    u32 prefix;  /* length of the prefix, bits of `addr` */
    u32 addr[4]; /* IPv4 as ::ffff:a.b.c.d; directly after the prefix, as the kernel requires */
};

struct filter {
    u32 netns;      /* 0 = any */
    u32 ifindex;    /* 0 = any; an interface of namespace if_netns */
    u32 if_netns;
    u8 ports;       /* 1 = the set of ports is in use */
    u8 hosts;       /* 1 = the set of hosts is in use */
    u8 protocol;    /* 0 = any */
    u8 family;      /* 0 = any, else 4 or 6 */
    u8 drops_only;  /* 1 = write only events that end a packet, and packets that open a connection */
    u8 packet_bound; /* 1 = netns or ifindex is set: the result is valid for one packet at one hook, not for a connection */
    u8 spare[2];
};

struct port_set {
    u64 bits[1024]; /* one bit for each port, host order */
};

BPF_ARRAY(filters, struct filter, 1);
BPF_ARRAY(ports, struct port_set, 1);
BPF_LPM_TRIE(hosts, struct network, u8, 256);

static __always_inline int port_matches(struct port_set *set, u16 port)
{
    return set->bits[port >> 6] >> (port & 63) & 1;
}

static __always_inline int host_matches(const union address *a)
{
    struct network key = {.prefix = 128, .addr = {a->parts[0], a->parts[1], a->parts[2], a->parts[3]}};
    return hosts.lookup(&key) != 0;
}

static __always_inline int tuple_matches(struct filter *f, const struct tuple *t)
{
    if (f->protocol && t->protocol != f->protocol)
        return 0;
    if (f->family && t->family != f->family)
        return 0;
    if (f->ports) {
        int zero = 0;
        struct port_set *set = ports.lookup(&zero);
        if (!t->has_ports || !set || !(port_matches(set, t->sport) || port_matches(set, t->dport)))
            return 0;
    }
    return !f->hosts || host_matches(&t->src) || host_matches(&t->dst);
}
