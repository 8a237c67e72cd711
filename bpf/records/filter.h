/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The filter, as map values: a change of the filter needs no recompilation.
 *
 * Each condition is met when one of the packet's tuples meets it: its own header, or its connection's original or reply tuple.
 * Otherwise the part of a connection after DNAT would be lost. Source and destination are those of the packet's direction: in
 * the tuple of the other direction they are exchanged. tracer/kernel/filter_maps.py fills these structures. */

/* Key of the set of wanted hosts, a longest-prefix trie: one look-up for each address, for any number of networks. */
struct network {
    u32 prefix;  /* length of the prefix, bits of `addr` */
    u32 addr[4]; /* IPv4 as ::ffff:a.b.c.d; directly after the prefix, as the kernel requires */
};

/* What a port or an address is wanted for. Each port and each network has a set of these bits. */
enum role {
    AT_EITHER_END = 1,  /* --port, --host */
    AT_SOURCE = 2,      /* --sport, --src */
    AT_DESTINATION = 4, /* --dport, --dst */
    EXCLUDED = 8,       /* --not-port, --not-host */
};

struct filter {
    u32 netns;      /* 0 = any */
    u32 ifindex;    /* 0 = any; an interface of namespace if_netns */
    u32 if_netns;
    u32 tcp_flags[8]; /* one bit for each value of the TCP flags that is wanted; all zero = any packet */
    u8 ports;       /* 1 = the set of ports is in use */
    u8 hosts;       /* 1 = the set of hosts is in use */
    u8 wanted;      /* roles that the packet must have: those of ports, and those of hosts << 4 */
    u8 excluded;    /* roles that it must not have */
    u8 protocol;    /* 0 = any */
    u8 family;      /* 0 = any, else 4 or 6 */
    u8 drops_only;  /* 1 = write only events that end a packet, and packets that open a connection */
    u8 packet_bound; /* 1 = netns or ifindex is set: the result is valid for one packet at one hook, not for a connection */
    u8 has_tcp_flags; /* 1 = tcp_flags is in use */
    u8 spare[3];
};

#define PORTS_IN_WORD 16

struct port_set {
    u64 roles[4096]; /* 4 bits for each port, host order */
};

BPF_ARRAY(filters, struct filter, 1);
BPF_ARRAY(ports, struct port_set, 1);
BPF_LPM_TRIE(hosts, struct network, u8, 256);

static __always_inline int only_drops(void)
{
    int zero = 0;
    struct filter *f = filters.lookup(&zero);
    return f && f->drops_only;
}

static __always_inline u8 roles_of_port(struct port_set *set, u16 port)
{
    return set->roles[port / PORTS_IN_WORD] >> port % PORTS_IN_WORD * 4 & 15;
}

/* Roles of an address. A network has the roles of all networks that it is in, too: the trie finds only the longest prefix. */
static __always_inline u8 roles_of_host(const union address *a)
{
    struct network key = {.prefix = 128, .addr = {a->parts[0], a->parts[1], a->parts[2], a->parts[3]}};
    u8 *roles = hosts.lookup(&key);
    return roles ? *roles : 0;
}

#define ROLES_OF_SOURCE (AT_EITHER_END | AT_SOURCE | EXCLUDED)
#define ROLES_OF_DESTINATION (AT_EITHER_END | AT_DESTINATION | EXCLUDED)

/* 1 if protocol and family of a tuple are wanted. Otherwise its ports and addresses have no role. */
static __always_inline int is_wanted_kind(struct filter *f, const struct tuple *t)
{
    return (!f->protocol || t->protocol == f->protocol) && (!f->family || t->family == f->family);
}

/* Roles that a tuple has: those of its ports, and those of its addresses << 4. opposite = 1: the tuple is that of the packets in
 * the other direction, so its source is where this packet goes. */
static __always_inline u8 roles_of_tuple(struct filter *f, const struct tuple *t, u8 opposite)
{
    u8 first = opposite ? ROLES_OF_DESTINATION : ROLES_OF_SOURCE, second = opposite ? ROLES_OF_SOURCE : ROLES_OF_DESTINATION;
    u8 roles = 0;

    if (f->ports && t->has_ports) {
        int zero = 0;
        struct port_set *set = ports.lookup(&zero);
        if (set)
            roles = (roles_of_port(set, t->sport) & first) | (roles_of_port(set, t->dport) & second);
    }
    if (f->hosts)
        roles |= ((roles_of_host(&t->src) & first) | (roles_of_host(&t->dst) & second)) << 4;
    return roles;
}

static __always_inline int has_wanted_roles(struct filter *f, u8 roles)
{
    return (roles & f->wanted) == f->wanted && !(roles & f->excluded);
}

/* 1 if the TCP flags of a packet are wanted. */
static __always_inline int tcp_flags_match(struct filter *f, u8 protocol, u8 flags)
{
    return !f->has_tcp_flags || (protocol == TCP && f->tcp_flags[flags >> 5] >> (flags & 31) & 1);
}
