/* The packet in a socket buffer: IPv4 or IPv6 header, ports, and what tells one packet from the next. */

#define ETH_IP 0x0800
#define ETH_IPV6 0x86dd

enum { ICMP = 1, TCP = 6, UDP = 17, DCCP = 33, ICMPV6 = 58, SCTP = 132, UDPLITE = 136 };

union address {
    u8 bytes[16];
    u32 parts[4];
    u64 words[2];
};

struct tuple {
    union address src, dst;
    u16 sport, dport; /* host order */
    u8 protocol;
    u8 family;    /* 4 or 6 */
    u8 has_ports; /* 0 for ICMP and fragments: sport and dport are something else */
};

struct packet {
    u32 seq, ack;
    u32 length;   /* from the IP header on */
    u32 sign;     /* survives NAT, differs from packet to packet: sequence number, or first bytes of the payload */
    u16 ident;    /* IPv4 identification */
    u8 tcp_flags;
    u8 fragment;
};

static __always_inline void map_ipv4(union address *to, u32 address)
{
    to->words[0] = 0;
    to->parts[2] = bpf_htonl(0xffff);
    to->parts[3] = address;
}

static __always_inline int has_ports(u8 protocol)
{
    return protocol == TCP || protocol == UDP || protocol == SCTP || protocol == UDPLITE || protocol == DCCP;
}

/* Fills *p and *t from the transport header, h; t->protocol is set. */
static __always_inline void parse_transport(struct packet *p, struct tuple *t, const u8 *h)
{
    t->has_ports = has_ports(t->protocol);
    if (t->protocol == TCP) {
        p->seq = bpf_ntohl(*(u32 *)(h + 4));
        p->ack = bpf_ntohl(*(u32 *)(h + 8));
        p->tcp_flags = h[13];
        p->sign = p->seq ^ p->ack;
    } else if (t->protocol == SCTP) {
        p->sign = *(u32 *)(h + 4) ^ *(u32 *)(h + 12); /* between them is a checksum, which NAT changes */
    } else {
        p->sign = *(u32 *)(h + 8);
    }
    if (t->has_ports) {
        t->sport = bpf_ntohs(*(u16 *)h);
        t->dport = bpf_ntohs(*(u16 *)(h + 2));
    } else if (t->protocol == ICMP || t->protocol == ICMPV6) {
        t->sport = bpf_ntohs(*(u16 *)(h + 4));
        t->dport = h[0] << 8 | h[1];
        p->sign ^= *(u16 *)(h + 6);
    }
}

/* Extension headers that may stand before the transport header; at most four are followed. */
static __always_inline int is_extension(u8 next)
{
    return next == 0 || next == 43 || next == 44 || next == 60;
}

/* The IP header and the first 16 bytes behind it, which are in one piece unless there are options or extensions. The
 * read may go beyond the packet's end, never beyond its buffer: struct skb_shared_info lies behind the data. */
#define RAW_BYTES 56

/* Fills *p and *t from the skb's network header, by way of raw. Returns 0 when it holds no IP packet. */
static __always_inline int parse_packet(struct call *c, struct sk_buff *skb, struct packet *p, struct tuple *t,
                                                 u8 *raw)
{
    void *at = READ(c, skb, head);
    u32 transport;

    at += READ(c, skb, network_header);
    if (bpf_probe_read_kernel(raw, RAW_BYTES, at))
        return 0;
    __builtin_memset(p, 0, sizeof(*p));
    __builtin_memset(t, 0, sizeof(*t));
    if (raw[0] >> 4 == 4) {
        t->family = 4;
        p->length = bpf_ntohs(*(u16 *)(raw + 2));
        p->ident = bpf_ntohs(*(u16 *)(raw + 4));
        t->protocol = raw[9];
        map_ipv4(&t->src, *(u32 *)(raw + 12));
        map_ipv4(&t->dst, *(u32 *)(raw + 16));
        if (bpf_ntohs(*(u16 *)(raw + 6)) & 0x1fff) {
            p->fragment = 1;
            return 1;
        }
        transport = (raw[0] & 15) * 4;
        if (transport == 20) {
            parse_transport(p, t, raw + 20);
            return 1;
        }
    } else if (raw[0] >> 4 == 6) {
        u8 next = raw[6];
        t->family = 6;
        p->length = 40 + bpf_ntohs(*(u16 *)(raw + 4));
        t->src = *(union address *)(raw + 8);
        t->dst = *(union address *)(raw + 24);
        transport = 40;
#pragma clang loop unroll(disable)
        for (int i = 0; i < 4; i++) {
            u8 ext[8] = {};
            if (!is_extension(next))
                break;
            bpf_probe_read_kernel(ext, sizeof(ext), at + transport);
            if (next == 44 && (bpf_ntohs(*(u16 *)(ext + 2)) & 0xfff8)) {
                t->protocol = ext[0];
                p->fragment = 1;
                return 1;
            }
            transport += next == 44 ? 8 : (ext[1] + 1) * 8;
            next = ext[0];
        }
        t->protocol = next;
    } else {
        return 0;
    }
    if (bpf_probe_read_kernel(raw, 16, at + transport) == 0)
        parse_transport(p, t, raw);
    return 1;
}

static __always_inline u32 netns_of(struct call *c, struct net *net)
{
    return net ? READ(c, net, ns_inum) : 0;
}

/* The namespace of a packet outside a netfilter hook: its device's, else its socket's. */
static __always_inline u32 netns_of_skb(struct call *c, struct sk_buff *skb)
{
    struct net_device *dev = READ(c, skb, dev);
    struct sock *sk;

    if (dev)
        return netns_of(c, READ(c, dev, nd_net_net));
    sk = READ(c, skb, sk);
    return sk ? netns_of(c, READ(c, sk, __sk_common_skc_net_net)) : 0;
}
