/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Two records beside struct event, in slots as it is, and told from it by `kind`, which is at the same place:
 * EVENT_STEPS and EVENT_RULESET.
 *
 * As event.h, this is the only description of them: tracer/events/table_trace.py reads the same lines. */

#define STEPS_IN_SHORT 4
#define STEPS_IN_RECORD 52
#define STEPS_WATCHED 128 /* in event.state: the run was watched */
#define STEPS_REPLACED 64 /* in event.state: the rules were replaced while it ran */
#define STEPS_SHAPE 2     /* in event.state: enum header_shape << 2; it has three bits */
#define STEPS_RECORDS 3   /* in event.state: the lowest bits count the run's records */

/* What of a packet's transport header is there. Matches of iptables throw a packet away that is too short for them. */
enum header_shape {
    SHAPE_WHOLE = 0,      /* all of it */
    SHAPE_NO_OPTIONS = 1, /* TCP: not all of the options that its length announces, or a length of less than 20 */
    SHAPE_NO_HEADER = 2,  /* the ports, but fewer than 20 bytes of TCP, 8 of any other */
    SHAPE_NO_PORTS = 3,   /* fewer than 4 bytes */
    SHAPE_OFFSET_8 = 4,   /* IPv4: a fragment that begins 8 bytes into the packet */
    SHAPE_BROKEN = 5,     /* IPv6: the extension headers end early, or one stands in a further fragment */
    SHAPE_UNKNOWN = 6,    /* IPv6: more extension headers than are followed, not all in the buffer itself, or one ends behind the packet */
    SHAPE_ELSEWHERE = 7,  /* it is in the packet, but not in the buffer itself: ports and flags are not known */
};

/* What one table run asked of matches and targets. It belongs to the TABLE event of the same packet and time. A step is a
 * match's or target's data, in words of 8 bytes from the first rule << 2, or-ed with: 0 a match that was false, 1 true, 2 not
 * known, 3 a target. A record of few steps is short. */
struct table_trace {
    u64 time;        /* of the TABLE event */
    u64 packet;      /* of the TABLE event */
    u64 object;      /* the rule blob when the table began: struct xt_table_info */
    u32 netns;       /* of the TABLE event */
    u32 mark;        /* skb->mark when the table began */
    u32 count;       /* steps taken, also those for which there was no room */
    u32 first;       /* number of the first step in this record */
    u32 hotdrop;     /* 0 not known, 1 no match threw the packet away, else 1 + the number of the step that did, from 1 */
    u16 hop;         /* of the TABLE event */
    u8 kind;         /* EVENT_STEPS */
    u8 flags;        /* of the TABLE event */
    u8 hook;         /* of the TABLE event */
    u8 pf;           /* 2 ip, 10 ip6 */
    u8 spare_2[2];   /* zero */
    u32 jumps[7];    /* at the last target: the rules jumped from, as words of 8 bytes from the first rule; stale ones too */
    u32 steps_1[4];  /* the first steps */
    u64 joint1;      /* zero: here begins the second slot */
    u32 steps_2[24]; /* more steps */
    u64 joint2;      /* zero: here begins the third slot */
    u32 steps_3[24]; /* more steps */
};

/* A legacy table was looked up, to be read or changed, or its rules were replaced. It belongs to no packet, and is short. */
struct table_generation {
    u64 time;       /* ns, CLOCK_MONOTONIC */
    u64 packet;     /* 0 */
    u64 object;     /* the rule blob in force now: struct xt_table_info */
    u32 netns;      /* looked up: inode of the network namespace; replaced: 0 */
    u32 thread;     /* of the process that did it */
    u32 spare[3];   /* zero */
    u16 hop;        /* 0 */
    u8 kind;        /* EVENT_RULESET */
    u8 flags;       /* 0 */
    u8 hook;        /* 255 */
    u8 pf;          /* looked up: 2 ip, 10 ip6, 3 arp; replaced: 0 */
    u8 spare_2[6];  /* zero */
    u64 before;     /* the rule blob that was replaced, 0 = none was */
    char table[32]; /* table name */
};
