/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Addresses that are replaced at connect() and sendmsg().
 *
 * __cgroup_bpf_run_filter_sock_addr runs where a program is attached for the socket's cgroup, and gets the address that the
 * process asked for. The programs may replace it, and the kernel connects the socket to the result, or sends the datagram there.
 * So one probe keeps the address before the programs run, and another one compares it with the address after them.
 *
 * connect(): the address is kept by socket. It is written with the SYN where that passes OUTPUT, and with its answer when it
 * arrives at the socket; of a socket of UDP, with the first datagram of each direction. Such a socket may also send to other
 * addresses: only packets to and from the one that it is connected to count.
 *
 * sendmsg() to an address: it is kept by thread, because several threads may send by one socket, and the datagram passes OUTPUT
 * in the thread that sends it. The entry is used once. For the answers the address is kept by socket and sender of the answer.
 *
 * An address of a socket is used again, so each entry has the socket's inode number. */

#ifndef ENUM_CGROUP_INET4_CONNECT
/* Until 5.15 the type is enum bpf_attach_type; its numbers are fixed: kernel commit 6fc88c354f3a ("bpf: Migrate cgroup_bpf to
 * internal cgroup_bpf_attach_type enum"). */
#define ENUM_CGROUP_INET4_CONNECT 10
#define ENUM_CGROUP_INET6_CONNECT 11
#define ENUM_CGROUP_UDP4_SENDMSG 14
#define ENUM_CGROUP_UDP6_SENDMSG 15
#endif

/* The datagrams that have shown the address of a connected socket, or-ed. */
enum { SENT_SHOWN = 1, RECEIVED_SHOWN = 2 };

struct asked_address {
    union address address;
    u64 inode;
    u16 port;     /* host order */
    u8 family;    /* of the programs that got it, AF_INET or AF_INET6 */
    u8 shown;     /* see SENT_SHOWN */
    u8 ambiguous; /* of a peer: the socket has reached it by its own address, or by more than one */
    u8 spare[3];
};
BPF_TABLE("lru_hash", u64, struct asked_address, asked_addresses, 4096);

/* A datagram that a thread sends, until it passes OUTPUT. */
struct asked_datagram {
    struct asked_address asked;
    union address given; /* where it is sent to */
    u64 socket;
    u32 given_port;
    u32 is_replaced; /* 1 = the programs have run, and `given` is another address than was asked for */
};
BPF_TABLE("lru_hash", u64, struct asked_datagram, asked_datagrams, 1024);

/* The other end of a socket that is not connected. */
struct peer {
    union address address;
    u64 socket;
    u32 port;
    u32 spare;
};
BPF_TABLE("lru_hash", struct peer, struct asked_address, asked_peers, 4096);

/* 1 as soon as an address was kept: without such programs a datagram costs no other look-up. */
BPF_ARRAY(asked_any, u32, 1);

static __always_inline int is_any_asked(void)
{
    int zero = 0;
    u32 *any = asked_any.lookup(&zero);
    return any && *any;
}

/* struct sockaddr_in and sockaddr_in6 */
struct given_address {
    u16 family;
    u16 port;
    u32 address4;
    u8 address6[16];
};

static __always_inline int is_any_address(union address *a)
{
    return !a->words[0] && (!a->words[1] || (a->parts[2] == bpf_htonl(0xffff) && !a->parts[3]));
}

static __always_inline int is_same_address(union address *a, union address *b)
{
    return a->words[0] == b->words[0] && a->words[1] == b->words[1];
}

static __always_inline int is_connect(u32 type)
{
    return type == ENUM_CGROUP_INET4_CONNECT || type == ENUM_CGROUP_INET6_CONNECT;
}

static __always_inline int is_sendmsg(u32 type)
{
    return type == ENUM_CGROUP_UDP4_SENDMSG || type == ENUM_CGROUP_UDP6_SENDMSG;
}

/* Reads a sockaddr; returns 0 if it cannot be read. */
static __always_inline int read_address(u64 from, union address *to, u16 *port)
{
    struct given_address given = {};

    if (!from || bpf_probe_read_kernel(&given, 8, (void *)from))
        return 0;
    if (given.family == AF_INET) {
        map_ipv4(to, given.address4);
    } else if (given.family == AF_INET6) {
        if (bpf_probe_read_kernel(&given, sizeof(given), (void *)from))
            return 0;
        __builtin_memcpy(to, given.address6, sizeof(*to));
    }
    *port = bpf_ntohs(given.port);
    return 1;
}

/* arg: sock, address, type */
static __always_inline int connect_entered(struct call *c)
{
    struct asked_datagram sent = {};
    struct asked_address *asked = &sent.asked;
    u64 key = c->arg[0], thread = bpf_get_current_pid_tgid();
    u32 type = c->arg[2], *any;
    int zero = 0, is_kept;

    if (!is_connect(type) && !is_sendmsg(type))
        return 0;
    is_kept = read_address(c->arg[1], &asked->address, &asked->port);
    asked->inode = socket_inode(c, (void *)c->arg[0]);
    asked->family = type == ENUM_CGROUP_INET4_CONNECT || type == ENUM_CGROUP_UDP4_SENDMSG ? AF_INET : AF_INET6;
    sent.socket = key;
    /* The kernel itself replaces the address 0. */
    is_kept = is_kept && asked->inode && !is_any_address(&asked->address);
    any = asked_any.lookup(&zero);
    if (any && is_kept)
        *any = 1;
    if (is_sendmsg(type) && is_kept) {
        if (asked_datagrams.update(&thread, &sent))
            count_lost(EVENT_CLUE);
        return 0;
    }
    asked_datagrams.delete(&thread);
    if (is_sendmsg(type))
        return 0;
    if (!is_kept)
        asked_addresses.delete(&key);
    else if (asked_addresses.update(&key, asked))
        count_lost(EVENT_CLUE);
    return 0;
}
PROBE_ENTRY(connect)

static __always_inline int is_asked_again(struct asked_address *known, struct asked_address *asked)
{
    return is_same_address(&known->address, &asked->address) && known->port == asked->port;
}

/* Keeps by which address a socket has reached the other end. If that is the end's own, or there are two, an answer does not show
 * which one it was. */
static __always_inline void keep_peer(struct asked_datagram *sent)
{
    struct peer peer = {.address = sent->given, .socket = sent->socket, .port = sent->given_port};
    struct asked_address *known = asked_peers.lookup(&peer), asked = sent->asked;

    if (known && known->inode == asked.inode) {
        if (!sent->is_replaced || !is_asked_again(known, &asked))
            known->ambiguous = 1;
        return;
    }
    asked.ambiguous = !sent->is_replaced;
    if (asked_peers.update(&peer, &asked))
        count_lost(EVENT_CLUE);
}

/* arg: sock, address, type */
static __always_inline int replaced_keep(struct call *c)
{
    return is_connect(c->arg[2]) || is_sendmsg(c->arg[2]);
}

static __always_inline int replaced_returned(struct call *c)
{
    u64 key = c->arg[0], thread = bpf_get_current_pid_tgid();
    struct asked_address *asked;
    struct asked_datagram *sent;
    union address given = {};
    u32 type = c->arg[2];
    u16 port = 0;
    int is_read;

    if (!is_connect(type) && !is_sendmsg(type))
        return 0;
    is_read = read_address(c->arg[1], &given, &port) && !(int)c->ret;
    if (is_sendmsg(type)) {
        sent = asked_datagrams.lookup(&thread);
        if (!sent || sent->socket != key)
            return 0;
        if (!is_read) {
            asked_datagrams.delete(&thread);
            return 0;
        }
        sent->given = given;
        sent->given_port = port;
        sent->is_replaced = !is_same_address(&sent->asked.address, &given) || sent->asked.port != port;
        keep_peer(sent);
        return 0;
    }
    asked = asked_addresses.lookup(&key);
    if (asked && (!is_read || (is_same_address(&asked->address, &given) && asked->port == port)))
        asked_addresses.delete(&key);
    return 0;
}
PROBE_RETURN(replaced)

/* Reads the address that a socket is connected to; returns 0 if there is none. */
static __always_inline int read_remote(struct call *c, struct sock *sk, union address *now, u16 *port)
{
#if defined(HAVE_sock___sk_common_skc_daddr) && defined(HAVE_sock___sk_common_skc_dport)
    u16 family = READ(c, sk, __sk_common_skc_family);

    if (family == AF_INET)
        map_ipv4(now, READ(c, sk, __sk_common_skc_daddr));
#ifdef HAVE_sock___sk_common_skc_v6_daddr
    else if (family == AF_INET6)
        bpf_probe_read_kernel(now, sizeof(*now), &sk->__sk_common_skc_v6_daddr);
#endif
    *port = bpf_ntohs(READ(c, sk, __sk_common_skc_dport));
    return !is_any_address(now);
#else
    return 0;
#endif
}

/* Writes what a socket asked for. Returns 1 if it was written. */
static __always_inline int write_asked(struct call *c, struct tracked_skb *e, struct sock *sk, struct asked_address *asked,
                                       u8 at_sendmsg)
{
    u64 cgroup = socket_cgroup(c, sk);
    struct decision_detail *out = reserve_detail(e, DETAIL_CONNECT);

    if (!out)
        return 0;
    out->object = cgroup;
    __builtin_memcpy(out->values, &asked->address, sizeof(out->values));
    out->spare = asked->port;
    out->state = asked->family;
    out->status = at_sendmsg;
    submit_detail(out);
    return 1;
}

/* Writes what a socket of TCP asked for, if it is connected to another address. */
static __always_inline void write_replaced_address(struct call *c, struct tracked_skb *e, struct sock *sk)
{
    u64 key = (u64)sk;
    struct asked_address *asked = asked_addresses.lookup(&key);
    union address now = {};
    u16 port = 0;

    if (!asked || asked->inode != socket_inode(c, sk) || !read_remote(c, sk, &now, &port))
        return;
    if (!is_same_address(&asked->address, &now) || asked->port != port)
        write_asked(c, e, sk, asked, 0);
}

/* Writes what a connected socket of UDP asked for, with its first datagram of a direction to or from that other end. */
static __always_inline void write_connected(struct call *c, struct tracked_skb *e, struct sock *sk, struct peer *peer, u8 shown)
{
    struct asked_address *asked = asked_addresses.lookup(&peer->socket);
    union address now = {};
    u16 port = 0;

    if (!asked || asked->shown & shown || asked->inode != socket_inode(c, sk) || !read_remote(c, sk, &now, &port))
        return;
    if (!is_same_address(&now, &peer->address) || port != peer->port)
        return;
    if (is_same_address(&asked->address, &now) && asked->port == port)
        return;
    if (write_asked(c, e, sk, asked, 0))
        asked->shown |= shown;
}

/* Where the sender sent a packet to, before NAT has changed it. */
static __always_inline void read_target(struct observation *s, struct peer *target)
{
#ifdef HAVE_nf_conn
    u64 ct = s->nfct & NFCT_POINTER;
    u8 tuple[SIZEOF_nf_conntrack_tuple] __attribute__((aligned(8))) = {};
    const struct nf_conntrack_tuple *t = (const void *)tuple;

    if (ct) {
        ct += OFFSET_nf_conn_tuplehash + OFFSET_nf_conntrack_tuple_hash_tuple;
        if ((s->nfct & ~NFCT_POINTER) > IP_CT_NEW)
            ct += SIZEOF_nf_conntrack_tuple_hash;
        bpf_probe_read_kernel(tuple, sizeof(tuple), (void *)ct);
        if (t->src_l3num == AF_INET)
            map_ipv4(&target->address, *(u32 *)t->dst_u3);
        else
            copy_parts(&target->address, t->dst_u3);
        target->port = bpf_ntohs(t->dst_u_all);
        return;
    }
#endif
    target->address = s->tuple[HEADER].dst;
    target->port = s->tuple[HEADER].dport;
}

/* A datagram that passes OUTPUT: writes what its socket asked for, if it was sent elsewhere. */
static __always_inline void write_sent_elsewhere(struct call *c, struct tracked_skb *e, struct sock *sk, struct observation *s)
{
    u64 thread = bpf_get_current_pid_tgid();
    struct peer target = {.socket = (u64)sk};
    struct asked_datagram *sent;

    read_target(s, &target);
    sent = asked_datagrams.lookup(&thread);
    if (sent && sent->socket == target.socket && sent->given_port == target.port &&
        is_same_address(&sent->given, &target.address) && sent->asked.inode == socket_inode(c, sk)) {
        if (sent->is_replaced)
            write_asked(c, e, sk, &sent->asked, 1);
        asked_datagrams.delete(&thread);
        return;
    }
    write_connected(c, e, sk, &target, SENT_SHOWN);
}

/* A datagram that arrives at a socket: the same. */
static __always_inline void write_answer_from_elsewhere(struct call *c, struct tracked_skb *e, struct sock *sk,
                                                        struct observation *s)
{
    struct peer peer = {.address = s->tuple[HEADER].src, .socket = (u64)sk, .port = s->tuple[HEADER].sport};
    struct asked_address *asked;

    asked = asked_peers.lookup(&peer);
    if (!asked || asked->inode != socket_inode(c, sk))
        write_connected(c, e, sk, &peer, RECEIVED_SHOWN);
    else if (!asked->ambiguous)
        write_asked(c, e, sk, asked, 1);
}
