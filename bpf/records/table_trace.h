/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The table trace and table generation records, in slots like struct event. `kind`, at the same offset, distinguishes them:
 * EVENT_STEPS and EVENT_RULESET.
 *
 * Like event.h, this is their only description: tracer/events/table_trace.py parses these lines. */

#define STEPS_IN_SHORT 4
#define STEPS_IN_RECORD 52
#define STEPS_WATCHED 128 /* in event.state: the run was watched */
#define STEPS_REPLACED 64 /* in event.state: the rules were replaced while it ran */
#define STEPS_STATUS_CHANGED 32 /* in event.state: bits of the connection's status that event.manip has changed while it ran */
#define STEPS_SHAPE 2     /* in event.state: enum header_shape << 2; it has three bits */
#define STEPS_RECORDS 3   /* in event.state: the lowest bits count the run's records */

/* How much of the transport header a packet has. Matches of iptables drop a packet that is too short for them. */
enum header_shape {
    SHAPE_WHOLE = 0,      /* the whole header */
    SHAPE_NO_OPTIONS = 1, /* TCP: fewer options than the header length announces, or a header length below 20 */
    SHAPE_NO_HEADER = 2,  /* the ports, but fewer than 20 bytes of TCP, 8 of any other */
    SHAPE_NO_PORTS = 3,   /* fewer than 4 bytes */
    SHAPE_OFFSET_8 = 4,   /* IPv4: a fragment at offset 8 of the packet */
    SHAPE_BROKEN = 5,     /* IPv6: the extension headers end early, or one of them is in a further fragment */
    SHAPE_UNKNOWN = 6,    /* IPv6: more extension headers than are parsed, or they are not in the linear data of the skb */
    SHAPE_ELSEWHERE = 7,  /* in the packet, but not in the linear data of the skb: ports and flags are not known */
};

/* The matches and targets that one run of a table called. It belongs to the TABLE event of the same packet and time. A step is
 * the offset of the match's or target's data from the first rule, in words of 8 bytes, << 2, or-ed with: 0 a match that was
 * false, 1 true, 2 not known, 3 a target. A record of few steps is short. */
struct table_trace {
    u64 time;        /* of the TABLE event */
    u64 packet;      /* of the TABLE event */
    u64 object;      /* the rule blob when the table began: struct xt_table_info */
    u32 netns;       /* of the TABLE event */
    u32 mark;        /* skb->mark when the table began */
    u32 count;       /* number of steps of the run, also those that did not fit */
    u32 first;       /* number of the first step in this record */
    u32 hotdrop;     /* 0 not known, 1 no match dropped the packet, else 1 + the number of the step that did, from 1 */
    u16 hop;         /* of the TABLE event */
    u8 kind;         /* EVENT_STEPS */
    u8 flags;        /* of the TABLE event */
    u8 hook;         /* of the TABLE event */
    u8 pf;           /* 2 ip, 10 ip6 */
    u8 spare_2[2];   /* zero */
    u32 jumps[7];    /* at the last target: offsets of the jump rules from the first rule, words of 8 bytes; may be stale */
    u32 steps_1[4];  /* the first steps */
    u64 joint1;      /* zero: here begins the second slot */
    u32 steps_2[24]; /* more steps */
    u64 joint2;      /* zero: here begins the third slot */
    u32 steps_3[24]; /* more steps */
};

/* A legacy table was looked up, to be read or changed, or its rules were replaced. The record belongs to no packet and is
 * short. */
struct table_generation {
    u64 time;       /* ns, CLOCK_MONOTONIC */
    u64 packet;     /* 0 */
    u64 object;     /* the rule blob in force now: struct xt_table_info */
    u32 netns;      /* looked up: inode of the network namespace; replaced: 0 */
    u32 thread;     /* id of the thread that did it */
    u32 spare[3];   /* zero */
    u16 hop;        /* 0 */
    u8 kind;        /* EVENT_RULESET */
    u8 flags;       /* 0 */
    u8 hook;        /* 255 */
    u8 pf;          /* looked up: 2 ip, 10 ip6, 3 arp; replaced: 0 */
    u8 spare_2[6];  /* zero */
    u64 before;     /* the rule blob that was replaced, 0 = none */
    char table[32]; /* table name */
};
