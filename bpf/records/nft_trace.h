/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The record of one nftables rule that acted on a packet, or of the end of a chain.
 *
 * It has the two sizes of struct event and its joints, so both fit the slots of one ring. Fields with the same name are at the
 * same offset: time, packet, object, netns, mark, hop, kind, flags, hook, pf. `kind` is EVENT_NFT_RULE. Ends of chains and
 * policies, where no rule acted, are short (FLAG_SAME). A run of nft_do_chain writes any number of these records and then one
 * EVENT_CHAIN with the same object and run; records of nested runs may be in between. */

enum nft_trace_kind {
    TRACE_POLICY = 1, /* the base chain's policy; there is no rule */
    TRACE_RETURN = 2, /* a rule with `return`, or the end of the chain: then code is NFT_CONTINUE and handle 0 */
    TRACE_RULE = 3,   /* a rule matched. Newer kernels use this for TRACE_RETURN, too; code and handle distinguish them */
};

struct nft_rule_trace {
    u64 time;           /* ns, CLOCK_MONOTONIC */
    u64 packet;         /* identity of the tracked packet */
    u64 object;         /* the base chain */
    u32 netns;          /* inode of the network namespace */
    u32 generation;     /* generation of the ruleset in that namespace, 0 = could not be read */
    u32 code;           /* verdict: NF_*, or negative in two's complement: NFT_* */
    u32 mark;           /* skb->mark after the rule */
    u32 cookie;         /* lower half of the namespace's cookie; inodes are reused, cookies are not. 0 = not known */
    u16 hop;            /* running number of this event in its packet */
    u8 kind;            /* EVENT_NFT_RULE */
    u8 flags;           /* enum event_flag, or-ed */
    u8 hook;            /* 0 PREROUTING 1 INPUT 2 FORWARD 3 OUTPUT 4 POSTROUTING */
    u8 pf;              /* protocol family of the hook */
    u8 trace;           /* enum nft_trace_kind */
    u8 family;          /* family of the table: 1 inet, 2 ip, 10 ip6 */
    u8 policy;          /* policy of the base chain: NF_DROP or NF_ACCEPT */
    u8 spare_2[3];      /* zero */
    u64 handle;         /* handle of the rule, unique in its table; 0 = no rule */
    u64 table_handle;   /* handle of the table, unique in the namespace */
    u64 to_handle;      /* JUMP, GOTO: handle of the target chain */
    u64 run;            /* address of this run's packet info, unique among concurrent runs. 0 = not known */
    u64 chain_handle;   /* handle of the base chain, unique in its table; 0 = not known */
    u64 joint1;         /* zero: here begins the second slot */
    char registers[64]; /* nftables' 16 data registers after the rule; they still hold the key of a map look-up */
    char table[32];     /* name of the table */
    u64 joint2;         /* zero: here begins the third slot */
    char to[96];        /* JUMP, GOTO: name of the target chain */
};
_Static_assert(sizeof(struct nft_rule_trace) == sizeof(struct event), "as whole as an event");
_Static_assert(__builtin_offsetof(struct nft_rule_trace, joint1) == SHORT_EVENT, "as short as an event");
_Static_assert(__builtin_offsetof(struct nft_rule_trace, joint2) == __builtin_offsetof(struct event, joint2), "same slots");
