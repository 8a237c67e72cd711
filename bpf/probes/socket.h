/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Arrival at a socket: sk_filter_trim_cap runs for every TCP, UDP, SCTP and raw packet with a socket, and has both as
 * arguments, before the socket's own filter may refuse the packet. It also runs for netlink and unix sockets. Their messages
 * are no packets: other data would be read as a header. */

/* Writes the listener's queues. whole: a whole event. */
static __always_inline void write_queues(struct call *c, struct event *whole, struct sock *sk)
{
    whole->accept_len = READ(c, sk, sk_ack_backlog);
    whole->accept_max = READ(c, sk, sk_max_ack_backlog);
    whole->syn_len = PEEK((struct inet_connection_sock *)sk, icsk_accept_queue_qlen_counter);
}

/* 1 if the accept queue of a listener is full (sk_acceptq_is_full). */
static __always_inline int is_full(struct call *c, struct sock *sk)
{
    return READ(c, sk, sk_ack_backlog) > READ(c, sk, sk_max_ack_backlog);
}

/* Writes that a program of sk_lookup chose the socket at which the packet arrives, and where that listens. */
static __always_inline void write_chosen(struct call *c, struct tracked_skb *e, struct sock *sk)
{
#ifdef HAVE_sock___sk_common_skc_num
    u16 family = READ(c, sk, __sk_common_skc_family), port = READ(c, sk, __sk_common_skc_num);
    struct decision_detail *out;
    union address here = {};

#ifdef HAVE_sock___sk_common_skc_rcv_saddr
    if (family == AF_INET)
        map_ipv4(&here, READ(c, sk, __sk_common_skc_rcv_saddr));
#endif
#ifdef HAVE_sock___sk_common_skc_v6_rcv_saddr
    if (family == AF_INET6)
        bpf_probe_read_kernel(&here, sizeof(here), &sk->__sk_common_skc_v6_rcv_saddr);
#endif
    out = reserve_detail(e, DETAIL_LOOKUP);
    if (!out)
        return;
    __builtin_memcpy(out->values, &here, sizeof(out->values));
    out->spare = port;
    out->state = family;
    submit_detail(out);
#endif
}

/* arg: sock, skb */
static __always_inline int socket_entered(struct call *c)
{
    struct sock *sk = (void *)c->arg[0];
    struct sk_buff *skb = (void *)c->arg[1];
    struct tracked_skb *e;
    struct reserved r;
    struct observation *s;
    u64 key = c->arg[1];
    u8 state;

    if (!is_ip_socket(c, sk))
        return 0;
    s = observation_of(c);
    state = READ(c, sk, __sk_common_skc_state);
    if (s)
        s->whole = state == TCP_LISTEN;
    e = track_outside_hook(c, skb, s, COMPARED);
    if (!e) {
        /* An earlier packet may have had this address, and the probes of the handshake, which follow, use the address alone. */
        if (state == TCP_LISTEN)
            tracked_skbs.delete(&key);
        return 0;
    }
#ifdef WATCHES_PROGRAMS
    compare_at_socket(c, skb, e, s);
#endif
    e->flags |= FLAG_AT_SOCKET;
    e->cgroup = socket_cgroup(c, sk);
#ifdef HAVE_sock_sk_filter
    e->filtered = READ(c, sk, sk_filter) != 0;
#endif
    /* The probes of the handshake, which follow, write no header: this event has it. */
    if (state == TCP_LISTEN)
        e->opens = 1;
    if (state == TCP_LISTEN && e->failures_only && !e->shed && is_full(c, sk))
        e->failures_only = NOT_SHED; /* the listener drops it: from here on all is written */
    if (drops_only_excludes(e, s->nfct))
        return 0;
    r = begin_event(c, e, EVENT_SOCKET, skb, s);
    if (!r.out)
        return 0;
    r.out->verdict = NF_ACCEPT;
    r.out->state = state;
    r.out->object = socket_inode(c, sk);
    if (r.whole && state == TCP_LISTEN && s->tuple[HEADER].protocol == TCP)
        write_queues(c, r.whole, sk);
    submit_event(r);
    if (e->lookup == LOOKUP_CHOSE)
        write_chosen(c, e, sk);
    e->lookup = 0;
    if (state == TCP_SYN_SENT)
        write_replaced_address(c, e, sk);
    else if (s->tuple[HEADER].protocol == UDP && is_any_asked())
        write_answer_from_elsewhere(c, e, sk, s);
    return 0;
}

PROBE_ENTRY(socket)
