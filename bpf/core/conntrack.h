/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The connection of a packet: skb->_nfct points to the conntrack entry with two tuples, the original direction and the reply
 * direction. With NAT the reply tuple differs from the inverted original tuple. */

#define NFCT_POINTER (~7ULL) /* the low bits of _nfct are enum ip_conntrack_info (NFCT_PTRMASK) */

/* enum ip_conntrack_info */
enum { IP_CT_RELATED = 1, IP_CT_NEW = 2, IP_CT_RELATED_REPLY = 4 };

#define FLOW_BYTES 144

/* A connection as it was read, besides its tuples. */
struct flow {
    u64 nfct;
    u32 status; /* the lower bits */
    u16 zone;
    u8 spare[2];
    u8 bytes[FLOW_BYTES]; /* space for reading it: the stack has none */
};

#ifdef HAVE_nf_conn
/* The destination address is only 4-aligned in its tuple, and the verifier requires aligned stack accesses. */
static __always_inline void copy_parts(union address *to, const u8 *from)
{
    const u32 *parts = (const u32 *)from;
    to->parts[0] = parts[0];
    to->parts[1] = parts[1];
    to->parts[2] = parts[2];
    to->parts[3] = parts[3];
}

static __always_inline void read_tuple(struct tuple *to, const u8 *hash)
{
    const struct nf_conntrack_tuple *t = (const void *)(hash + OFFSET_nf_conntrack_tuple_hash_tuple);

    to->protocol = t->dst_protonum;
    to->has_ports = has_ports(t->dst_protonum);
    to->sport = bpf_ntohs(t->src_u_all);
    to->dport = bpf_ntohs(t->dst_u_all);
    if (t->src_l3num == 2) { /* AF_INET */
        to->family = 4;
        map_ipv4(&to->src, *(u32 *)t->src_u3);
        map_ipv4(&to->dst, *(u32 *)t->dst_u3);
    } else {
        to->family = 6;
        copy_parts(&to->src, t->src_u3);
        copy_parts(&to->dst, t->dst_u3);
    }
}

static __always_inline u16 zone_of(u64 nfct)
{
#ifdef HAVE_nf_conn_zone_id
    return PEEK((struct nf_conn *)(nfct & NFCT_POINTER), zone_id);
#else
    return 0;
#endif
}

/* Zone, tuples and status are near each other, in this order, so that one read has all three. */
#ifdef HAVE_nf_conn_zone_id
#define FLOW_BEGIN (OFFSET_nf_conn_zone_id & ~7)
_Static_assert(OFFSET_nf_conn_zone_id < OFFSET_nf_conn_tuplehash, "order");
#else
#define FLOW_BEGIN OFFSET_nf_conn_tuplehash
#endif
_Static_assert(OFFSET_nf_conn_tuplehash < OFFSET_nf_conn_status, "order");
_Static_assert(OFFSET_nf_conn_status + sizeof(u64) - FLOW_BEGIN <= FLOW_BYTES, "near each other");

/* Fills both tuples, original and reply, and *flow; returns 0 if the packet has no conntrack entry. nfct: skb->_nfct. */
static __always_inline int read_flow(u64 nfct, struct tuple *tuples, struct flow *flow)
{
    u8 *hash = flow->bytes + OFFSET_nf_conn_tuplehash - FLOW_BEGIN;
    u64 ct = nfct & NFCT_POINTER;

    flow->status = flow->zone = 0;
    if (!ct || bpf_probe_read_kernel(flow->bytes, OFFSET_nf_conn_status + sizeof(u64) - FLOW_BEGIN, (void *)(ct + FLOW_BEGIN)))
        return 0;
    read_tuple(&tuples[0], hash);
    read_tuple(&tuples[1], hash + SIZEOF_nf_conntrack_tuple_hash);
    flow->status = *(u64 *)(flow->bytes + OFFSET_nf_conn_status - FLOW_BEGIN);
#ifdef HAVE_nf_conn_zone_id
    flow->zone = *(u16 *)(flow->bytes + OFFSET_nf_conn_zone_id - FLOW_BEGIN);
#endif
    return 1;
}

#define IPS_CONFIRMED 8
#define IPS_NAT_SHIFT 4 /* IPS_SRC_NAT is bit 4 of the status, IPS_DST_NAT bit 5 */

/* Whether there is a connection, which of its ends are translated, and its status: the TABLE_* bits of records/event.h. */
static __always_inline u8 connection_bits(struct call *c, u64 nfct)
{
    struct nf_conn *ct = (void *)(nfct & NFCT_POINTER);
    u64 status;

    if (!ct)
        return TABLE_CT_KNOWN;
    status = LOAD_FIELD(c, ct, status);
    return TABLE_CT_KNOWN | TABLE_CT | (status >> IPS_NAT_SHIFT & (TABLE_SNAT | TABLE_DNAT)) | status << TABLE_STATUS;
}

/* 1 if the connection's tuples do not change any more: NAT may write the reply tuple until the first packet has left the last
 * hook. */
static __always_inline int has_settled(u64 nfct, u32 status)
{
    return (nfct & ~NFCT_POINTER) != IP_CT_NEW || (status & IPS_CONFIRMED);
}

static __always_inline int is_settled(u64 nfct)
{
    struct nf_conn *ct = (void *)(nfct & NFCT_POINTER);
    return (nfct & ~NFCT_POINTER) != IP_CT_NEW || (PEEK(ct, status) & IPS_CONFIRMED);
}
#else
static __always_inline u8 connection_bits(struct call *c, u64 nfct)
{
    return 0;
}

static __always_inline int has_settled(u64 nfct, u32 status)
{
    return 0;
}

static __always_inline int is_settled(u64 nfct)
{
    return 0;
}

static __always_inline int read_flow(u64 nfct, struct tuple *tuples, struct flow *flow)
{
    flow->status = flow->zone = 0;
    return 0;
}

static __always_inline u16 zone_of(u64 nfct)
{
    return 0;
}
#endif
