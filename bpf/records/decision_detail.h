/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The decision detail record: what the kernel knew when it decided. It is written where the decision alone does not show the
 * reason.
 *
 * It has the size of a short event. The fields that both have are at the same offsets: time, packet, object, netns, hop, kind,
 * flags. A decision detail belongs to a tracked packet and has no header. tracer/events/decision_detail.py reads it. */

enum decision_detail_kind {
    DETAIL_LISTENER = 1,   /* a SYN reaches its listener; values: accept queue, its limit, SYN queue, tcp_max_syn_backlog */
    DETAIL_TIME_WAIT = 2,  /* a SYN hits a connection in TIME_WAIT; values: newest timestamp of that connection, its age in s */
    DETAIL_TABLE_FULL = 3, /* conntrack's table is full, and no entry could be evicted for the packet's connection */
    DETAIL_CONFIRM = 4,    /* conntrack did not insert the packet's connection: another one with the same tuple was first */
    DETAIL_NEIGHBOUR = 5,  /* the packet waits for the link address of the next hop; values: address of the next hop */
    DETAIL_ROUTE = 6,      /* the route of the packet is an error route; values: errno of the route */
    DETAIL_RESET = 7,      /* a TCP reset answers the packet; values: enum sk_rst_reason; object: socket inode, 0 = no socket */
    DETAIL_CONNECT = 8,    /* the packet's socket asked for another address than it is connected to, or than its datagram was sent
                              to; values: that address, IPv4 as ::ffff:a.b.c.d; object: id of the socket's cgroup, 0 = not known */
    DETAIL_QUEUE_ANSWER = 9,  /* a queue (NFQUEUE) gives the packet back; values: NF_* verdict with its flags, number of the queue,
                                 process that answered, 0 = none; object: time in the queue, ns */
    DETAIL_QUEUE_REFUSED = 10, /* a queue (NFQUEUE) did not take the packet; values: errno, number of the queue, packets that wait
                                  in it, their maximum, 0 = not known */
    DETAIL_LOOKUP = 11,    /* a program of sk_lookup chose the socket at which the packet arrives; values: its local address, IPv4 as
                              ::ffff:a.b.c.d, 0 = any */
};

/* QUEUE_ANSWER, status: who gave the packet back. */
enum queue_answer_by {
    ANSWER_UNKNOWN = 0,
    ANSWER_OF_PROCESS = 1, /* the process behind the queue */
    ANSWER_EMPTIED = 2,    /* the kernel: the process ended, or unbound the queue */
    ANSWER_DEVICE = 3,     /* the kernel: an interface of the packet went down */
    ANSWER_UNHOOKED = 4,   /* the kernel: functions of the hook were removed */
    ANSWER_FULL = 5,       /* the kernel: the queue is full, and lets packets pass then (fail-open) */
    ANSWER_NOT_READ = 6,   /* the kernel: the receive buffer of the process is full; fail-open */
};

/* QUEUE_REFUSED, status: what was full; 0 = neither, see errno. */
enum queue_refused_by {
    QUEUE_FULL = 1,     /* the queue */
    QUEUE_NOT_READ = 2, /* the receive buffer of the process */
};

#define TASK_NAME 16 /* bytes of a process's name, with the NUL */

struct decision_detail {
    u64 time;        /* ns, CLOCK_MONOTONIC */
    u64 packet;      /* identity of the tracked packet */
    u64 object;      /* RESET: socket inode; CONNECT: cgroup; QUEUE_ANSWER: ns in the queue */
    u32 netns;       /* inode of the network namespace */
    u32 values[4];   /* see enum decision_detail_kind */
    u16 hop;         /* running number of this event in its packet */
    u8 kind;         /* EVENT_CLUE */
    u8 flags;        /* enum event_flag, or-ed */
    u8 what;         /* enum decision_detail_kind */
    u8 status;       /* LISTENER: tcp_syncookies; TIME_WAIT: enum tcp_tw_status; NEIGHBOUR: NUD_*; RESET: 1 = by a socket; CONNECT: 1 = at
                        sendmsg(), 0 = at connect(); QUEUE_ANSWER: enum queue_answer_by; QUEUE_REFUSED: enum queue_refused_by */
    u8 state;        /* TIME_WAIT: 6, or 5 for FIN_WAIT2; RESET: TCP state of the socket; NEIGHBOUR: address family of the
                        next hop, 2 or 10, 0 = not known; CONNECT: that of the programs which replaced it */
    u8 option_bytes; /* LISTENER, TIME_WAIT: bytes of TCP options; QUEUE_ANSWER: of the process's name */
    u32 spare;       /* CONNECT: port that the socket asked for; LOOKUP: port of the socket; else zero */
    u8 options[40];  /* LISTENER, TIME_WAIT: TCP options of the SYN, as sent; QUEUE_ANSWER: name of the process */
};
_Static_assert(sizeof(struct decision_detail) == SHORT_EVENT, "one slot");
_Static_assert(__builtin_offsetof(struct decision_detail, kind) == __builtin_offsetof(struct event, kind), "kind");
_Static_assert(__builtin_offsetof(struct decision_detail, flags) == __builtin_offsetof(struct event, flags), "flags");
