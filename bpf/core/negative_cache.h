/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The negative cache: makes unwanted packets cheap.
 *
 * If a connection is known and does not match the filter, the result is valid for all its packets: each CPU caches the
 * connections that it has just rejected, and every program returns after that one look-up. Conntrack entries are reused, so a
 * cached result is valid for one or two ticks, which is less than any entry's timeout; and a wanted connection removes the
 * result that an earlier connection left for its entry. ICMP errors about a connection are filtered each time: their own
 * addresses are not those of the connection.
 *
 * A packet without a connection has only its address, which is no identity. But if it was rejected in PREROUTING or OUTPUT, the
 * same address in a later hook of the same namespace and CPU, within a tick, is the same packet. */

#define CACHED_CONNECTIONS 64

struct negative_cache {
    struct {
        u64 nfct;
        u64 until; /* jiffies */
    } connection[CACHED_CONNECTIONS];
    u64 skb;
    u64 until;
    u32 netns;
    u8 pf;
    u8 stage;
    u8 spare[2];
};

/* The calls of a row that are under way on a CPU: see core/nested_call.h. */
struct row_calls {
    u64 handled[2]; /* contexts of calls that the second program has handled, until the first one meets them; 0 = none */
    u8 had_second;  /* 1 = the second program has handled a call */
    u8 is_running;  /* 1 = the second program is running; before 5.12: the single one */
    u8 spare[6];
};

/* What a CPU keeps from one call to the next. */
struct cpu_state {
    struct negative_cache rejected;
    struct row_calls calls[MOST_ROWS];
};

BPF_PERCPU_ARRAY(cpu_states, struct cpu_state, 1);

static __always_inline struct cpu_state *cpu_state_here(void)
{
    int zero = 0;
    return cpu_states.lookup(&zero);
}

enum { PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING, NO_HOOK = 255 };

/* The stage of a packet on its path through one namespace: even inside the hook, odd after the hook has returned. */
static __always_inline u8 stage_of(u8 hook, u8 returned)
{
    u8 rank = hook == POSTROUTING ? 2 : hook == INPUT || hook == FORWARD ? 1 : 0;
    return rank * 2 + returned;
}

/* Index in the cache. Conntrack entries are at least 256 bytes apart. */
static __always_inline u32 place_of(u64 nfct)
{
    return (nfct >> 8 ^ nfct >> 14) & (CACHED_CONNECTIONS - 1);
}

static __always_inline struct negative_cache *negative_cache_here(void)
{
    struct cpu_state *here = cpu_state_here();
    return here ? &here->rejected : 0;
}

/* 1 if this CPU has just rejected this connection. nfct: skb->_nfct. */
static __always_inline int in_negative_cache(struct call *c, u64 nfct)
{
    struct negative_cache *u = c->here ? &c->here->rejected : negative_cache_here();
    u32 place = place_of(nfct);
    return u && nfct & NFCT_POINTER && u->connection[place].nfct == nfct && bpf_jiffies64() <= u->connection[place].until;
}

/* 1 if this CPU has just rejected this packet, which has no connection, in an earlier hook. */
static __always_inline int passed_over(u64 skb, u32 netns, u8 pf, u8 stage)
{
    struct negative_cache *u = negative_cache_here();
    if (!u || u->skb != skb || u->netns != netns || u->pf != pf || stage <= u->stage || bpf_jiffies64() > u->until)
        return 0;
    u->stage = stage;
    return 1;
}

static __always_inline void add_to_negative_cache(u64 nfct)
{
    struct negative_cache *u = negative_cache_here();
    u32 place = place_of(nfct), info = nfct & ~NFCT_POINTER;
    if (!u || info == IP_CT_RELATED || info == IP_CT_RELATED_REPLY)
        return;
    u->connection[place].nfct = nfct;
    u->connection[place].until = bpf_jiffies64() + 1;
}

static __always_inline void pass_over(u64 skb, u32 netns, u8 pf, u8 stage)
{
    struct negative_cache *u = negative_cache_here();
    if (!u)
        return;
    u->skb = skb;
    u->netns = netns;
    u->pf = pf;
    u->stage = stage;
    u->until = bpf_jiffies64() + 1;
}

static __always_inline void remove_from_negative_cache(u64 skb, u64 nfct)
{
    struct negative_cache *u = negative_cache_here();
    u32 place = place_of(nfct);
    if (!u)
        return;
    if ((u->connection[place].nfct & NFCT_POINTER) == (nfct & NFCT_POINTER))
        u->connection[place].nfct = 0;
    if (u->skb == skb)
        u->skb = 0;
}
