/* Arrival at a socket: sk_filter_trim_cap runs for every TCP, UDP, SCTP and raw packet that found its socket, with both
 * in hand, before the socket's own filter may refuse it. */

/* The inode number of a socket, as in /proc/PID/fd: socket:[N]; 0 for a socket nobody has accepted or opened. */
static __always_inline u64 socket_inode(struct call *c, struct sock *sk)
{
    struct socket *socket = READ(c, sk, sk_socket);
    struct file *file = socket ? READ(c, socket, file) : 0;
    struct inode *inode = file ? READ(c, file, f_inode) : 0;
    return inode ? READ(c, inode, i_ino) : 0;
}

#define TCP_LISTEN 10

static __always_inline void write_queues(struct call *c, struct event *out, struct sock *sk)
{
    out->accept_len = READ(c, sk, sk_ack_backlog);
    out->accept_max = READ(c, sk, sk_max_ack_backlog);
    out->syn_len = PEEK((struct inet_connection_sock *)sk, icsk_accept_queue_qlen_counter);
}

/* arg: sock, skb */
static __always_inline int socket_entered(struct call *c)
{
    struct sock *sk = (void *)c->arg[0];
    struct sk_buff *skb = (void *)c->arg[1];
    struct follow *e;
    struct event *out;
    struct sight *s = sight_of(c);

    e = follow_outside(c, skb, s);
    if (e)
        e->flags |= FLAG_AT_SOCKET;
    out = e && !only_drops() ? reserve_event(e, EVENT_SOCKET, c->arg[1]) : 0;
    if (!out)
        return 0;
    write_sight(c, out, skb, s);
    out->verdict = NF_ACCEPT;
    out->state = READ(c, sk, __sk_common_skc_state);
    out->object = socket_inode(c, sk);
    if (out->state == TCP_LISTEN && s->packet.tuple.protocol == TCP)
        write_queues(c, out, sk);
    submit_event(out);
    return 0;
}

PROBE_ENTRY(socket)
