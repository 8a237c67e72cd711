/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The packet in a socket buffer: IPv4 or IPv6 header, ports, and the fingerprint that distinguishes packets. */

#define ETH_IP 0x0800
#define ETH_IPV6 0x86dd

#define TCP_FLAG_SYN 2
#define TCP_FLAG_RST 4
#define TCP_FLAG_ACK 16

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
    u8 has_ports; /* 0 for ICMP and fragments: sport and dport are no ports then */
};

struct packet {
    u32 seq, ack;
    u32 length;   /* from the IP header on */
    u32 fingerprint; /* unchanged by NAT, different for each packet: sequence number, or first bytes of the payload */
    u16 ident;    /* IPv4 identification */
    u8 tcp_flags;
    u8 fragment;  /* 1 = a fragment, but not the first */
    u8 part;      /* 1 = any fragment */
    u8 shape;     /* enum header_shape: how much of the transport header is there */
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

/* Length of a packet from its IP header on, bytes: the whole packet, and the part in the linear data of the skb. */
struct extent {
    s32 whole, here;
};

/* head, network: the skb's head and network_header, which the caller has read. */
static __always_inline struct extent extent_of(struct call *c, struct sk_buff *skb, u64 head, u64 network)
{
    u64 data = (u64)READ(c, skb, data) - head;

    return (struct extent){(s32)(data + READ(c, skb, len) - network), (s32)(READ(c, skb, tail) - network)};
}

#define TRANSPORT_BYTES 16 /* bytes of the transport header that are parsed */
#define TCP_HEADER 20
#define OTHER_HEADER 8 /* length of UDP's, ICMP's and ICMPv6's header */
#define TCP_DATA_OFFSET 12

/* How much of the transport header is in the packet. room: bytes from the header's first byte to the packet's end. */
static __always_inline u8 shape_of(u8 protocol, const u8 *h, s32 room)
{
    s32 own = (h[TCP_DATA_OFFSET] >> 4) * 4;

    if (room < 4)
        return SHAPE_NO_PORTS;
    if (room < (protocol == TCP ? TCP_HEADER : OTHER_HEADER))
        return SHAPE_NO_HEADER;
    if (protocol == TCP && (own < TCP_HEADER || own > room))
        return SHAPE_NO_OPTIONS;
    return SHAPE_WHOLE;
}

/* Clears the bytes after the packet's end: the buffer still holds data of earlier packets there. */
static __always_inline void cut_off(u8 *h, s32 room)
{
#pragma unroll
    for (int i = 0; i < TRANSPORT_BYTES; i += 4) {
        s32 left = room - i;
        if (left <= 0)
            *(u32 *)(h + i) = 0;
        else if (left < 4)
            *(u32 *)(h + i) &= bpf_htonl(~0U << (32 - 8 * left));
    }
}

/* Fills *p and *t from the transport header h. left: bytes of it in the packet. t->protocol is already set. */
static __always_inline void parse_transport(struct packet *p, struct tuple *t, u8 *h, struct extent left)
{
    s32 here = left.here < left.whole ? left.here : left.whole;

    if (here < TRANSPORT_BYTES)
        cut_off(h, here);
    p->shape = here < TRANSPORT_BYTES && here < left.whole ? SHAPE_ELSEWHERE : shape_of(t->protocol, h, left.whole);
    t->has_ports = has_ports(t->protocol) && here >= 4;
    if (t->protocol == TCP) {
        p->seq = bpf_ntohl(*(u32 *)(h + 4));
        p->ack = bpf_ntohl(*(u32 *)(h + 8));
        p->tcp_flags = h[13];
        p->fingerprint = p->seq ^ p->ack;
    } else if (t->protocol == SCTP) {
        p->fingerprint = *(u32 *)(h + 4) ^ *(u32 *)(h + 12); /* the checksum between them is changed by NAT */
    } else {
        p->fingerprint = *(u32 *)(h + 8);
    }
    if (t->has_ports) {
        t->sport = bpf_ntohs(*(u16 *)h);
        t->dport = bpf_ntohs(*(u16 *)(h + 2));
    } else if (t->protocol == ICMP || t->protocol == ICMPV6) {
        t->sport = bpf_ntohs(*(u16 *)(h + 4));
        t->dport = here < 2 ? NO_ICMP_TYPE : h[0] << 8 | h[1];
        p->fingerprint ^= *(u16 *)(h + 6);
    }
}

/* Most extension headers before the transport header. ipv6_find_hdr parses any number of them on some kernels and twelve on
 * others (seen: 6.12 and 7.2), so after more than twelve the protocol is not known. */
#define EXTENSIONS_FOLLOWED 12
enum { HOP_BY_HOP = 0, ROUTING = 43, FRAGMENT = 44, AUTHENTICATION = 51, DESTINATION = 60 };

/* 1 if `kind` is in a set of bits, without a branch: older verifiers follow both sides of each branch in each iteration. */
static __always_inline u64 in_bits(u64 bits, u8 kind)
{
    asm volatile("" : "+r"(bits));
    return kind < 64 ? bits >> kind & 1 : 0;
}

#define BIT(kind) (1ULL << (kind))
#define EXTENSION_BITS (BIT(HOP_BY_HOP) | BIT(ROUTING) | BIT(FRAGMENT) | BIT(AUTHENTICATION) | BIT(DESTINATION))

static __always_inline int is_extension(u8 next)
{
    return in_bits(EXTENSION_BITS, next);
}

/* Parses the extension headers of the IPv6 packet at `at`, as ipv6_find_hdr does. Sets t->protocol and returns the offset of
 * the transport header; 0 = there is none, or it was not found; p->shape and p->fragment have the reason.
 *
 * Length fields: AH has the number of 4-byte words minus two, the fragment header has 8 bytes, the others have the number of
 * 8-byte words minus one. */
static __always_inline u32 past_extensions(struct packet *p, struct tuple *t, void *at, struct extent end, u8 next)
{
    u32 transport = 40;

#pragma clang loop unroll(disable)
    for (int i = 0; i < EXTENSIONS_FOLLOWED; i++) {
        u8 ext[8] = {};
        u64 fragment, routing, authentication;
        s32 wanted;

        if (!is_extension(next))
            break;
        fragment = in_bits(BIT(FRAGMENT), next & 63);
        authentication = in_bits(BIT(AUTHENTICATION), next & 63);
        routing = in_bits(BIT(ROUTING), next & 63);
        wanted = transport + 2 + 2 * (fragment | routing);
        if (end.whole < wanted) {
            t->protocol = next;
            p->shape = SHAPE_BROKEN;
            return 0;
        }
        if (end.here < wanted)
            break;
        bpf_probe_read_kernel(ext, sizeof(ext), at + transport);
        next = ext[0];
        p->part |= fragment;
        if (bpf_ntohs(*(u16 *)(ext + 2)) & 0xfff8 & -fragment) {
            t->protocol = next;
            p->fragment = 1;
            if (is_extension(next))
                p->shape = SHAPE_BROKEN; /* ipv6_find_hdr returns "no such header" here */
            return 0;
        }
        transport += ((ext[1] & (fragment - 1)) + 1 + authentication) << (3 - authentication);
        if ((s32)transport > end.whole) {
            t->protocol = next;
            p->shape = SHAPE_UNKNOWN;
            return 0;
        }
    }
    t->protocol = next;
    if (!is_extension(next))
        return transport;
    p->shape = SHAPE_UNKNOWN;
    return 0;
}

/* The IP header and the next 16 bytes, contiguous unless there are options or extensions. The read may go beyond the packet's
 * end, never beyond its buffer: struct skb_shared_info follows the data. */
#define RAW_BYTES 56
#define FIRST_BYTES 40 /* an IPv6 header, or one of IPv4 and the next 20 bytes */

/* Fills *p and *t from the skb's network header, or with at_data from its data; raw is the buffer for it. Returns 0 if the skb holds
 * no IP packet. */
static __always_inline int parse_packet(struct call *c, struct sk_buff *skb, int at_data, struct packet *p, struct tuple *t, u8 *raw)
{
    u64 head = (u64)READ(c, skb, head), network = at_data ? (u64)READ(c, skb, data) - head : READ(c, skb, network_header);
    struct extent end = extent_of(c, skb, head, network);
    void *at = (void *)head + network;
    u32 transport;

    if (copy_words(c, (u64 *)raw, FIRST_BYTES, (u64)at))
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
        p->part = (bpf_ntohs(*(u16 *)(raw + 6)) & 0x3fff) != 0;
        if (bpf_ntohs(*(u16 *)(raw + 6)) & 0x1fff) {
            p->fragment = 1;
            if ((bpf_ntohs(*(u16 *)(raw + 6)) & 0x1fff) == 1)
                p->shape = SHAPE_OFFSET_8;
            return 1;
        }
        transport = (raw[0] & 15) * 4;
        if (transport == 20) {
            parse_transport(p, t, raw + 20, (struct extent){end.whole - 20, end.here - 20});
            return 1;
        }
    } else if (raw[0] >> 4 == 6) {
        t->family = 6;
        p->length = 40 + bpf_ntohs(*(u16 *)(raw + 4));
        t->src = *(union address *)(raw + 8);
        t->dst = *(union address *)(raw + 24);
        transport = past_extensions(p, t, at, end, raw[6]);
        if (!transport)
            return 1;
    } else {
        return 0;
    }
    if (bpf_probe_read_kernel(raw, TRANSPORT_BYTES, at + transport) == 0)
        parse_transport(p, t, raw, (struct extent){end.whole - (s32)transport, end.here - (s32)transport});
    return 1;
}

static __always_inline u32 netns_of(struct call *c, struct net *net)
{
    return net ? READ(c, net, ns_inum) : 0;
}

/* The namespace of a packet outside a netfilter hook: that of its device, else that of its socket. */
static __always_inline u32 netns_of_skb(struct call *c, struct sk_buff *skb)
{
    struct net_device *dev = READ(c, skb, dev);
    struct sock *sk;

    if (dev)
        return netns_of(c, READ(c, dev, nd_net_net));
    sk = READ(c, skb, sk);
    return sk ? netns_of(c, READ(c, sk, __sk_common_skc_net_net)) : 0;
}
