/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Arrival at a socket: sk_filter_trim_cap runs for every TCP, UDP, SCTP and raw packet with a socket, and has both as
 * arguments, before the socket's own filter may refuse the packet. It also runs for netlink and unix sockets. Their messages
 * are no packets: other data would be read as a header. */

#define TCP_TIME_WAIT 6
#define TCP_LISTEN 10
#define TCP_NEW_SYN_RECV 12

/* The inode number of a socket, as in /proc/PID/fd: socket:[N]; 0 = no process has accepted or opened the socket. */
static __always_inline u64 socket_inode(struct call *c, struct sock *sk)
{
    struct socket *socket = READ(c, sk, sk_socket);
    struct file *file = socket ? READ(c, socket, file) : 0;
    struct inode *inode = file ? READ(c, file, f_inode) : 0;
    return inode ? READ(c, inode, i_ino) : 0;
}

/* The id of the cgroup (of version 2) whose programs a socket's packets meet; 0 = not known. A half-open connection has the
 * listener's; one in TIME_WAIT has none. */
static __always_inline u64 socket_cgroup(struct call *c, struct sock *sk)
{
#if defined(HAVE_sock_sk_cgrp_data_cgroup) && defined(HAVE_cgroup_kn) && defined(HAVE_kernfs_node_id)
    u8 state = READ(c, sk, __sk_common_skc_state);
    struct cgroup *cgroup;
    struct kernfs_node *node;

    if (state == TCP_TIME_WAIT)
        return 0;
    if (state == TCP_NEW_SYN_RECV) {
#ifdef HAVE_sock___sk_common_skc_listener
        sk = READ(c, sk, __sk_common_skc_listener);
#else
        sk = 0;
#endif
        if (!sk)
            return 0;
    }
    cgroup = READ(c, sk, sk_cgrp_data_cgroup);
    node = cgroup ? READ(c, cgroup, kn) : 0;
    return node ? READ(c, node, id) : 0;
#else
    return 0;
#endif
}

#define AF_INET 2
#define AF_INET6 10

static __always_inline int is_ip_socket(struct call *c, struct sock *sk)
{
    u16 family = READ(c, sk, __sk_common_skc_family);
    return family == AF_INET || family == AF_INET6;
}

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
    e = track_outside_hook(c, skb, s);
    if (!e) {
        /* An earlier packet may have had this address, and the probes of the handshake, which follow, use the address alone. */
        if (state == TCP_LISTEN)
            tracked_skbs.delete(&key);
        return 0;
    }
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
    r = begin_event(c, e, EVENT_SOCKET, skb, s, 0, 0);
    if (!r.out)
        return 0;
    r.out->verdict = NF_ACCEPT;
    r.out->state = state;
    r.out->object = socket_inode(c, sk);
    if (r.whole && state == TCP_LISTEN && s->tuple[HEADER].protocol == TCP)
        write_queues(c, r.whole, sk);
    submit_event(r);
    return 0;
}

PROBE_ENTRY(socket)
