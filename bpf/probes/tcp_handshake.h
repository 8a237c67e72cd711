/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The path of a TCP handshake through its listener.
 *
 *   SYN          tcp_conn_request: SYN queue, cookies, TIME_WAIT and timestamp checks. It always returns 0; the decision
 *                shows in whether a SYN-ACK was sent for this SYN (tcp_v4_send_synack has the SYN's skb as argument).
 *   last ACK     tcp_check_req, which calls tcp_v4_syn_recv_sock; that returns no socket if the accept queue is full.
 *
 * TCP has removed the conntrack entry from the packet by then (nf_reset_ct), so only its tracking entry identifies it. */

enum { REFUSED = 0, PASSED = 1, UNKNOWN = 255 };
enum synack { SYNACK_SENT = 1, SYNACK_COOKIE = 2 };

/* Writes one event of a packet that is already tracked; its socket event, directly before on this path, has its header. */
static __always_inline int write_handshake(struct call *c, u8 kind, u8 verdict, u8 final, u32 reason)
{
    struct sock *sk = (void *)c->arg[0];
    struct tracked_skb *e = find_tracked(c->arg[1]);
    struct reserved r;

    if (!e || e->dead || (final ? is_shed_opening(e) : drops_only_excludes(e, 0)))
        return 0;
    r = reserve_whole(e, kind);
    if (!r.out)
        return 0;
    r.out->flags |= FLAG_NO_HEADER;
    r.out->verdict = verdict;
    r.out->reason = reason;
    r.out->object = socket_inode(c, sk);
    r.out->state = READ(c, sk, __sk_common_skc_state);
    write_queues(c, r.whole, sk);
    submit_event(r);
    return 0;
}

/* arg: skb of the SYN; NULL for a repeated SYN-ACK */
static __always_inline int synack4_entered(struct call *c)
{
    u64 skb = c->arg[0];
    struct tracked_skb *e = skb ? find_tracked(skb) : 0;

    if (e)
        e->synack |= SYNACK_SENT;
    return 0;
}
#define synack6_entered synack4_entered
PROBE_ENTRY(synack4)
PROBE_ENTRY(synack6)

/* arg: skb of the SYN that is answered with a cookie; the kernel keeps no request for it */
static __always_inline int cookie4_entered(struct call *c)
{
    struct tracked_skb *e = find_tracked(c->arg[0]);

    if (e)
        e->synack |= SYNACK_COOKIE;
    return 0;
}
#define cookie6_entered cookie4_entered
PROBE_ENTRY(cookie4)
PROBE_ENTRY(cookie6)

static __always_inline int handshake_keep(struct call *c)
{
    u64 skb = c->arg[1];
    return find_tracked(skb) != 0;
}

/* arg: listener, skb */
#define syn_keep handshake_keep
static __always_inline int syn_returned(struct call *c)
{
    struct tracked_skb *e = find_tracked(c->arg[1]);
    u8 verdict = e && e->synack & SYNACK_SENT ? PASSED : SYNACK_SEEN ? REFUSED : UNKNOWN;
    u32 cookie = e && e->synack & SYNACK_COOKIE;

    if (e)
        e->synack = 0;
    return write_handshake(c, EVENT_SYN, verdict, verdict == REFUSED, cookie);
}
PROBE_RETURN(syn)

/* Reads a flag at a kernel address. */
static __always_inline u8 flag_at(u64 at)
{
    u8 set = 0;

    bpf_probe_read_kernel(&set, sizeof(set), (void *)at);
    return set;
}

/* Two concurrent segments, the last ACK and the first data, may both complete the handshake, and the kernel makes a connection
 * for each. It discards the second connection and looks its segment up again; the segment then reaches the first connection,
 * which is written as any arrival at a socket. No decision about it is written here. */

/* arg: listener, skb, pointer to a flag: the new connection is the one that is kept */
#define accept4_keep handshake_keep
static __always_inline int accept4_returned(struct call *c)
{
    u8 verdict = c->ret ? PASSED : REFUSED;

    if (c->ret && c->arg[2] && !flag_at(c->arg[2]))
        return 0;
    return write_handshake(c, EVENT_ACCEPT, verdict, !c->ret, 0);
}
#define accept6_keep handshake_keep
#define accept6_returned accept4_returned
PROBE_RETURN(accept4)
PROBE_RETURN(accept6)

/* arg: listener, skb, pointer to a flag: another segment was first */
#define request_keep handshake_keep
static __always_inline int request_returned(struct call *c)
{
    u8 verdict = c->ret ? PASSED : REFUSED;

    if (!c->ret && c->arg[2] && flag_at(c->arg[2]))
        return 0;
    return write_handshake(c, EVENT_REQUEST, verdict, !c->ret, 0);
}
PROBE_RETURN(request)
