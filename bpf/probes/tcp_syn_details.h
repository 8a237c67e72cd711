/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Why a SYN was not accepted: the listener's queues and settings when it arrived, the connection in TIME_WAIT that it hit, the
 * socket that answered with a reset. None of these functions runs for a segment of an open connection. */

/* The entry of a packet, if it still belongs to this packet. No tracking begins here: a decision detail has no header. */
static __always_inline struct tracked_skb *is_still_tracked(struct call *c, struct sk_buff *skb, struct observation *s)
{
    struct tracked_skb *e = find_tracked((u64)skb);

    if (!e || e->dead || !s || !parse_header(c, skb, s))
        return 0;
    return same_fingerprint(e, s) ? e : 0;
}

/* Writes the SYN's options; the reader parses them. The read may go beyond the options, never beyond the buffer. */
static __always_inline void write_options(struct decision_detail *out, struct sk_buff *skb)
{
    void *at = PEEK(skb, head);
    u8 words = 0;

    at += PEEK(skb, transport_header);
    bpf_probe_read_kernel(&words, sizeof(words), at + TCP_DATA_OFFSET);
    words >>= 4;
    out->option_bytes = words > TCP_HEADER / 4 ? words * 4 - TCP_HEADER : 0;
    bpf_probe_read_kernel(out->options, sizeof(out->options), at + TCP_HEADER);
}

/* arg: listener, skb. At entry of tcp_conn_request: the state that its decision depends on; the decision is seen at return. */
static __always_inline int listener_entered(struct call *c)
{
    struct sock *sk = (void *)c->arg[0];
    struct sk_buff *skb = (void *)c->arg[1];
    struct tracked_skb *e = find_tracked(c->arg[1]);
    struct net *net;
    struct decision_detail *out;

    if (!e || e->dead || is_shed_opening(e))
        return 0;
    out = reserve_detail(e, DETAIL_LISTENER);
    if (!out)
        return 0;
    net = PEEK(sk, __sk_common_skc_net_net);
    out->values[0] = PEEK(sk, sk_ack_backlog);
    out->values[1] = PEEK(sk, sk_max_ack_backlog);
    out->values[2] = PEEK((struct inet_connection_sock *)sk, icsk_accept_queue_qlen_counter);
#ifdef HAVE_net_ipv4_sysctl_max_syn_backlog
    out->values[3] = PEEK(net, ipv4_sysctl_max_syn_backlog);
#endif
#ifdef HAVE_net_ipv4_sysctl_tcp_syncookies
    out->status = PEEK(net, ipv4_sysctl_tcp_syncookies);
#endif
    write_options(out, skb);
    submit_detail(out);
    return 0;
}
PROBE_ENTRY(listener)

#define NS_A_SECOND 1000000000ULL

/* The packet has reached a connection in TIME_WAIT, a socket without a process. Written also with --drops-only: the kernel
 * frees the last segments of every connection as if it dropped them, and only this event distinguishes them from drops. */
static __always_inline int write_time_wait(struct call *c, struct tracked_skb *e, struct sk_buff *skb, struct observation *s)
{
    struct reserved r = begin_event(c, e, EVENT_SOCKET, skb, s);

    if (!r.out)
        return 0;
    r.out->verdict = NF_ACCEPT;
    r.out->state = TCP_TIME_WAIT;
    submit_event(r);
    return 0;
}

/* arg: the connection in TIME_WAIT, skb; returns enum tcp_tw_status. The packet has reached no other socket. */
static __always_inline int time_wait_keep(struct call *c)
{
    return 1;
}

static __always_inline int time_wait_returned(struct call *c)
{
#if defined(HAVE_tcp_timewait_sock_tw_ts_recent) && defined(HAVE_inet_timewait_sock_tw_substate)
    struct tcp_timewait_sock *tw = (void *)c->arg[0];
    struct sk_buff *skb = (void *)c->arg[1];
    struct observation *s = observation_of(c);
    struct tracked_skb *e;
    struct decision_detail *out;
    u32 recent, stamp;

    e = track_outside_hook(c, skb, s, PARSED);
    if (!e)
        return 0;
    write_time_wait(c, e, skb, s);
    if ((s->packet.tcp_flags & (TCP_FLAG_SYN | TCP_FLAG_ACK)) != TCP_FLAG_SYN) {
        e->flags |= FLAG_AT_SOCKET;
        return 0;
    }
    out = reserve_detail(e, DETAIL_TIME_WAIT);
    if (!out)
        return 0;
    recent = PEEK(tw, tw_ts_recent);
    stamp = PEEK(tw, tw_ts_recent_stamp);
    out->values[0] = recent;
    out->values[1] = stamp ? bpf_ktime_get_ns() / NS_A_SECOND - stamp : 0;
    out->values[2] = stamp != 0;
    out->status = c->ret;
    out->state = PEEK((struct inet_timewait_sock *)tw, tw_substate);
    write_options(out, skb);
    submit_detail(out);
#endif
    return 0;
}
PROBE_RETURN(time_wait)

/* arg: socket or NULL, skb, reason (since 6.10) */
static __always_inline int answer_reset4_entered(struct call *c)
{
    struct sock *sk = (void *)c->arg[0];
    struct tracked_skb *e = is_still_tracked(c, (void *)c->arg[1], observation_of(c));
    struct decision_detail *out;

    if (!e)
        return 0;
    out = reserve_detail(e, DETAIL_RESET);
    if (!out)
        return 0;
    out->values[0] = c->arg[2];
    if (sk) {
        out->status = 1;
        out->state = PEEK(sk, __sk_common_skc_state);
        out->object = socket_inode(c, sk);
    }
    submit_detail(out);
    return 0;
}
#define answer_reset6_entered answer_reset4_entered
PROBE_ENTRY(answer_reset4)
PROBE_ENTRY(answer_reset6)
