/* Two records beside struct event, as long as it is, and told from it by `kind`, which is at the same place.
 *
 * As event.h, this is the only description of them: tracer/rules/steps.py reads the same lines. */

enum other_kind {
    EVENT_STEPS = 13,   /* struct steps */
    EVENT_RULESET = 14, /* struct ruleset */
};

#define STEPS_IN_RECORD 48
#define STEPS_WATCHED 128 /* in event.steps: the run was watched; the lowest bits count its records */
#define STEPS_REPLACED 64 /* in event.steps: the rules were replaced while it ran */

/* What one table run asked of matches and targets. It belongs to the TABLE event of the same packet, time
 * and skb. */
struct steps {
    u64 time;      /* of the TABLE event */
    u64 packet;    /* of the TABLE event */
    u64 skb;       /* of the TABLE event */
    u64 object;    /* the rule blob when the table began: struct xt_table_info */
    u32 netns;     /* of the TABLE event */
    u32 mark;      /* skb->mark when the table began */
    u32 count;     /* steps taken, also those for which there was no room */
    u32 first;     /* number of the first step in this record */
    u32 jumps[7];  /* at the last target: the rules jumped from, as words of 8 bytes from the first rule; stale ones too */
    u16 hop;       /* of the TABLE event */
    u16 cpu;       /* CPU it ran on */
    u32 spare[4];  /* zero */
    u8 kind;       /* EVENT_STEPS */
    u8 flags;      /* of the TABLE event */
    u8 hook;       /* of the TABLE event */
    u8 pf;         /* 2 ip, 10 ip6 */
    u32 steps[48]; /* a match's or target's data, in words of 8 bytes from the first rule << 2, or-ed with: 0 a match that was
                      false, 1 true, 2 not known, 3 a target */
    u32 rest[3];   /* zero */
};

/* A legacy table was looked up, to be read or changed, or its rules were replaced. It belongs to no packet. */
struct ruleset {
    u64 time;      /* ns, CLOCK_MONOTONIC */
    u64 packet;    /* 0 */
    u64 before;    /* the rule blob that was replaced, 0 = none was */
    u64 object;    /* the rule blob in force now: struct xt_table_info */
    u32 netns;     /* looked up: inode of the network namespace; replaced: 0 */
    u32 thread;    /* of the process that did it */
    u32 spare[9];  /* zero */
    u16 hop;       /* 0 */
    u16 cpu;       /* CPU it ran on */
    u32 more[4];   /* zero */
    u8 kind;       /* EVENT_RULESET */
    u8 flags;      /* 0 */
    u8 hook;       /* 255 */
    u8 pf;         /* looked up: 2 ip, 10 ip6, 3 arp; replaced: 0 */
    char table[32]; /* table name */
    u32 rest[43];  /* zero */
};
