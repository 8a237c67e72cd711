/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A record beside struct event: what the kernel knew at the moment it decided, where the decision alone does not say why.
 *
 * It has the size of a short event, and what both have stands at one place: time, packet, object, netns, hop, kind, flags. A
 * clue belongs to a packet that is followed already, and says nothing of its header. tracer/events/decision_detail.py reads the
 * same lines. */

enum decision_detail_kind {
    DETAIL_LISTENER = 1,   /* a SYN comes to its listener; values: accept queue, its limit, SYN queue, tcp_max_syn_backlog */
    DETAIL_TIME_WAIT = 2,  /* a SYN hit a connection in TIME_WAIT; values: newest timestamp of that one, seconds since */
    DETAIL_TABLE_FULL = 3, /* conntrack's table had no room for the packet's connection, and none could be made */
    DETAIL_CONFIRM = 4,    /* its connection was not put into conntrack's table: another with the same tuple was faster */
    DETAIL_NEIGHBOUR = 5,  /* it waits until the next hop's link address is known; values: the next hop's address */
    DETAIL_ROUTE = 6,      /* it has a route that leads nowhere; values: the route's errno */
    DETAIL_RESET = 7,      /* it is answered with a TCP reset; values: enum sk_rst_reason; object: socket inode, 0 = no socket */
};

struct decision_detail {
    u64 time;        /* ns, CLOCK_MONOTONIC */
    u64 packet;      /* the followed packet */
    u64 object;      /* RESET: socket inode */
    u32 netns;       /* inode of the network namespace */
    u32 values[4];   /* see enum decision_detail_kind */
    u16 hop;         /* running number in its packet */
    u8 kind;         /* EVENT_CLUE */
    u8 flags;        /* enum event_flag, or-ed */
    u8 what;         /* enum decision_detail_kind */
    u8 status;       /* LISTENER: tcp_syncookies; TIME_WAIT: enum tcp_tw_status; NEIGHBOUR: NUD_* bits; RESET: 1 = by a socket */
    u8 state;        /* TIME_WAIT: 6, or 5 while it is FIN_WAIT2; RESET: TCP state of the socket; NEIGHBOUR: address family of the
                        next hop, 2 or 10, 0 = not known */
    u8 option_bytes; /* LISTENER, TIME_WAIT: bytes of TCP options */
    u32 spare;       /* zero */
    u8 options[40];  /* LISTENER, TIME_WAIT: the SYN's TCP options as they were sent */
};
_Static_assert(sizeof(struct decision_detail) == SHORT_EVENT, "one slot");
_Static_assert(__builtin_offsetof(struct decision_detail, kind) == __builtin_offsetof(struct event, kind), "kind");
_Static_assert(__builtin_offsetof(struct decision_detail, flags) == __builtin_offsetof(struct event, flags), "flags");
