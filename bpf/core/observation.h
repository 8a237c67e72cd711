/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Observation of a packet at a probe, and the filter on it. */

enum { HEADER, ORIG, REPLY };

/* Lower than the priority of every function. */
#define UNKNOWN_PRIORITY ((s32)0x80000000)

/* Data of a packet at a probe. */
struct observation {
    struct tuple tuple[3]; /* HEADER, ORIG, REPLY; the last two only if has_flow */
    struct packet packet;
    struct flow flow; /* only if has_flow */
    u64 flow_of;   /* the packet to which the settled connection in ORIG, REPLY and flow belongs, 0 = none */
    u64 nfct;
    u64 address;   /* address of the skb, see recent_of */
    u64 tracked;   /* address of the last skb with an entry */
    u32 netns;
    u32 in, out;   /* interface numbers */
    s32 priority;  /* of the function in its hook, or UNKNOWN_PRIORITY */
    u8 has_flow;
    u8 whole;      /* set by the probe: its event has fields that a short event lacks */
    u8 same;       /* unchanged since the last whole event; ORIG and REPLY, in a table run also HEADER and packet, are stale */
    u8 hook;
    u8 pf;
    u8 returned;   /* the hook has returned */
    u8 by_loopback;
    u8 parsed;     /* the header must be parsed, whatever is known of it */
    u8 at_data;    /* the header is where the packet's data begins: the stack has not set network_header yet */
    u8 raw[RAW_BYTES] __attribute__((aligned(8)));
};

/* Observations are too large for a program's stack of 512 bytes. Two for each row and CPU are enough: one for a call, one for a
 * call within that one (core/nested_call.h). Programs at kprobes are never run within each other (bpf_prog_active). */
BPF_PERCPU_ARRAY(observations, struct observation, MOST_ROWS + COUNTER_ROWS);

static __always_inline struct observation *observation_of(struct call *c)
{
    int number = c->number + c->nested;
    return observations.lookup(&number);
}

/* Fills packet and header of an observation from the skb, as parse_packet does. arg: skb, s */
static __always_inline int parse_header_called(struct call *c)
{
    struct observation *s = (void *)c->arg[1];
#ifdef WATCHES_PROGRAMS
    int at_data = s->at_data;
#else
    int at_data = 0;
#endif

    return parse_packet(c, (void *)c->arg[0], at_data, &s->packet, &s->tuple[HEADER], s->raw);
}
FUNCTION(parse_header)

static __always_inline int parse_header(struct call *c, struct sk_buff *skb, struct observation *s)
{
    u64 in[] = {(u64)skb, (u64)s, 0};
    return CALL(c, parse_header)(in);
}

/* 1 if this tuple is that of the packets in the other direction of the packet's connection. */
static __always_inline u8 is_opposite(struct observation *s, int tuple)
{
    u8 is_reply = (s->nfct & ~NFCT_POINTER) > IP_CT_NEW;
    return tuple != HEADER && (tuple == REPLY) != is_reply;
}

/* 1 if the filter selects the packet, leaving out its TCP flags: for a packet of a connection, the result is valid for all
 * packets of that direction. */
static __always_inline int filter_wants(struct filter *f, struct observation *s)
{
    u8 roles = 0, is_wanted = 0;

    if (f->netns && f->netns != s->netns)
        return 0;
    if (f->ifindex && !(f->if_netns == s->netns && (f->ifindex == s->in || f->ifindex == s->out)))
        return 0;
#pragma clang loop unroll(disable)
    for (int i = HEADER; i <= (s->has_flow ? REPLY : HEADER); i++) {
        if (is_wanted_kind(f, &s->tuple[i])) {
            is_wanted = 1;
            roles |= roles_of_tuple(f, &s->tuple[i], is_opposite(s, i));
        }
    }
    return is_wanted && has_wanted_roles(f, roles);
}

static __always_inline int wants_tcp_flags(struct filter *f, struct observation *s)
{
    return tcp_flags_match(f, s->tuple[HEADER].protocol, s->packet.tcp_flags);
}

/* 0 if the packet has no options or extensions and its ports are unwanted; without a connection it is then unwanted. This is
 * the cheapest check. at_data: a constant, as of parse_packet. */
static __always_inline int ports_may_match(struct call *c, struct sk_buff *skb, struct filter *f, int at_data)
{
    struct {
        u8 ip[20];
        u16 sport, dport;
    } h __attribute__((aligned(8)));
    void *at = READ(c, skb, head);
    struct port_set *set;
    int zero = 0;

    if (!(f->wanted & (AT_EITHER_END | AT_SOURCE | AT_DESTINATION)))
        return 1;
    if (at_data)
        at = READ(c, skb, data);
    else
        at += READ(c, skb, network_header);
    if (copy_words(c, (u64 *)&h, sizeof(h), (u64)at) || h.ip[0] != 0x45)
        return 1;
    set = ports.lookup(&zero);
    return !set || (roles_of_port(set, bpf_ntohs(h.sport)) | roles_of_port(set, bpf_ntohs(h.dport))) & f->wanted;
}
