/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Addresses that are replaced at connect().
 *
 * __cgroup_bpf_run_filter_sock_addr runs where a program is attached for the socket's cgroup, and gets the address that the
 * process asked for. The programs may replace it, and the kernel connects the socket to the result. So the probe keeps the
 * address by socket, and where the SYN passes OUTPUT, or its answer arrives at the socket, it is compared with the address that
 * the socket is connected to. Only TCP: a socket of UDP may send to another address than the one that it is connected to.
 *
 * An address of a socket is used again, so the entry has the socket's inode number. */

#ifndef ENUM_CGROUP_INET4_CONNECT
/* Until 5.15 the type is enum bpf_attach_type; its numbers are fixed: kernel commit 6fc88c354f3a ("bpf: Migrate cgroup_bpf to
 * internal cgroup_bpf_attach_type enum"). */
#define ENUM_CGROUP_INET4_CONNECT 10
#define ENUM_CGROUP_INET6_CONNECT 11
#endif

struct asked_address {
    union address address;
    u64 inode;
    u32 port; /* host order */
    u32 spare;
};
BPF_TABLE("lru_hash", u64, struct asked_address, asked_addresses, 4096);

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

/* arg: sock, address, type */
static __always_inline int connect_entered(struct call *c)
{
    struct sock *sk = (void *)c->arg[0];
    u64 key = c->arg[0];
    u32 type = c->arg[2];
    struct given_address given = {};
    struct asked_address asked = {};

    if (type != ENUM_CGROUP_INET4_CONNECT && type != ENUM_CGROUP_INET6_CONNECT)
        return 0;
    if (bpf_probe_read_kernel(&given, 8, (void *)c->arg[1]))
        return 0;
    if (given.family == AF_INET) {
        map_ipv4(&asked.address, given.address4);
    } else if (given.family == AF_INET6) {
        if (bpf_probe_read_kernel(&given, sizeof(given), (void *)c->arg[1]))
            return 0;
        __builtin_memcpy(&asked.address, given.address6, sizeof(asked.address));
    }
    asked.inode = socket_inode(c, sk);
    asked.port = bpf_ntohs(given.port);
    /* The kernel itself replaces the address 0. */
    if (!asked.inode || is_any_address(&asked.address))
        asked_addresses.delete(&key);
    else
        asked_addresses.update(&key, &asked);
    return 0;
}
PROBE_ENTRY(connect)

/* Writes what a socket asked for, if it is connected to another address. */
static __always_inline void write_replaced_address(struct call *c, struct tracked_skb *e, struct sock *sk)
{
#if defined(HAVE_sock___sk_common_skc_daddr) && defined(HAVE_sock___sk_common_skc_dport)
    u64 key = (u64)sk, cgroup;
    struct asked_address *asked = asked_addresses.lookup(&key);
    struct decision_detail *out;
    union address now = {};
    u16 family;

    if (!asked || asked->inode != socket_inode(c, sk))
        return;
    family = READ(c, sk, __sk_common_skc_family);
    if (family == AF_INET)
        map_ipv4(&now, READ(c, sk, __sk_common_skc_daddr));
#ifdef HAVE_sock___sk_common_skc_v6_daddr
    else if (family == AF_INET6)
        bpf_probe_read_kernel(&now, sizeof(now), &sk->__sk_common_skc_v6_daddr);
#endif
    if (is_any_address(&now))
        return;
    if (asked->address.words[0] == now.words[0] && asked->address.words[1] == now.words[1] &&
        asked->port == bpf_ntohs(READ(c, sk, __sk_common_skc_dport)))
        return;
    cgroup = socket_cgroup(c, sk);
    out = reserve_detail(e, DETAIL_CONNECT);
    if (!out)
        return;
    out->object = cgroup;
    __builtin_memcpy(out->values, &asked->address, sizeof(out->values));
    out->spare = asked->port;
    out->state = family;
    submit_detail(out);
#endif
}
