/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Observation of a packet at a probe, and the filter on it. */

enum { HEADER, ORIG, REPLY };

/* Lower than the priority of every function. */
#define UNKNOWN_PRIORITY ((s32)0x80000000)

/* Data of a packet at a probe. */
struct observation {
    struct tuple tuple[3]; /* HEADER, ORIG, REPLY; the last two only if has_flow */
    struct packet packet;
    u64 nfct;
    u64 address;   /* address of the skb, see recent_of */
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
    u8 raw[RAW_BYTES];
};

/* Observations are too large for a program's stack of 512 bytes. One for each row and CPU is enough: the kernel never runs a
 * program recursively (kprobes: bpf_prog_active; fentry: prog->active, since kernel commit ca06f55b9002), it counts a miss. */
BPF_PERCPU_ARRAY(observations, struct observation, COUNTER_ROWS);

static __always_inline struct observation *observation_of(struct call *c)
{
    int number = c->number;
    return observations.lookup(&number);
}

static __always_inline int filter_wants(struct filter *f, struct observation *s)
{
    if (f->netns && f->netns != s->netns)
        return 0;
    if (f->ifindex && !(f->if_netns == s->netns && (f->ifindex == s->in || f->ifindex == s->out)))
        return 0;
#pragma clang loop unroll(disable)
    for (int i = HEADER; i <= (s->has_flow ? REPLY : HEADER); i++)
        if (tuple_matches(f, &s->tuple[i]))
            return 1;
    return 0;
}

/* 0 if the packet has no options or extensions and its ports are unwanted; without a connection it is then unwanted. This is
 * the cheapest check. */
static __always_inline int ports_may_match(struct call *c, struct sk_buff *skb, struct filter *f)
{
    struct {
        u8 ip[20];
        u16 sport, dport;
    } h __attribute__((aligned(8)));
    void *at = READ(c, skb, head);
    struct port_set *set;
    int zero = 0;

    if (!f->ports)
        return 1;
    at += READ(c, skb, network_header);
    if (bpf_probe_read_kernel(&h, sizeof(h), at) || h.ip[0] != 0x45)
        return 1;
    set = ports.lookup(&zero);
    return !set || port_matches(set, bpf_ntohs(h.sport)) || port_matches(set, bpf_ntohs(h.dport));
}
