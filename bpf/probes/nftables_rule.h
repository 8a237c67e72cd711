/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* nftables rules that acted: __nft_trace_packet is called for each, for the end of each chain, and for the policy.
 *
 * While the static key nft_trace_enabled is on, the kernel calls it for every packet, before it checks skb->nf_trace; the key
 * is turned on from a network namespace of our own (tracer/rules/nftables/trace_key.py). A run may be the first observation of
 * a packet, so the first call of a run decides whether the packet is tracked; `nft_runs` stores that for the rest of the run.
 *
 * Runs nest. `dup` and TEE send a copy through OUTPUT and POSTROUTING from within their rule, REJECT sends its answer that way,
 * `fwd` the packet itself; and a softirq may run chains for other packets while it interrupts a sending process. So each CPU
 * has space for several runs. A run is identified by addresses on its own stack: of the trace info here, and of the packet info
 * in the records, since nft_do_chain has the packet info, too. */

#if defined(HAVE_nft_traceinfo) && defined(HAVE_nft_base_chain_chain) && defined(HAVE_nft_verdict)

#define NFT_CONTINUE (-1)
#define NFT_JUMP (-3)
#define NFT_GOTO (-4)
#define NFT_LAST_CODE (-5)
#define NF_VERDICT_MASK 0xff
#define REGISTERS_AFTER_VERDICT 16

/* Maximal depth of jumps in nftables (NFT_JUMP_STACK_SIZE). */
#define NFT_JUMPS 16

struct nft_run {
    u64 skb;
    u64 chain;
    u64 packet; /* identity of the packet, 0 = unwanted */
    u64 depth;  /* with --drops-only: number of jumps to the current chain */
    struct nft_rule_trace jumps[NFT_JUMPS];
};
BPF_PERCPU_ARRAY(nft_runs, struct nft_run, NFT_RUNS);

/* The run with this trace info, or a new one; if all are in use the last one is replaced. */
static __always_inline struct nft_run *run_with(u64 info)
{
    u32 at = NFT_RUNS, free = NFT_RUNS - 1;
    u64 now = bpf_jiffies64();
    struct nft_open *open = nft_open_here();
    struct nft_run *run;

    if (!open)
        return 0;
#pragma unroll
    for (int i = NFT_RUNS - 1; i >= 0; i--) {
        if (open->info[i] == info && now <= open->until[i])
            at = i;
        if (!open->info[i] || now > open->until[i])
            free = i;
    }
    if (at < NFT_RUNS) {
        open->until[at & (NFT_RUNS - 1)] = now + NFT_RUN_TICKS;
        return nft_runs.lookup(&at);
    }
    open->info[free & (NFT_RUNS - 1)] = info;
    open->until[free & (NFT_RUNS - 1)] = now + NFT_RUN_TICKS;
    run = nft_runs.lookup(&free);
    if (run) {
        run->skb = 0;
        run->depth = 0;
    }
    return run;
}

/* The last call of a run. A packet that a rule stole may have been freed when its chain returns, so it is stored here. */
static __always_inline void close_run(u64 info, u64 pkt, u64 packet)
{
    struct nft_open *open = nft_open_here();

    if (!open)
        return;
#pragma unroll
    for (int i = 0; i < NFT_RUNS; i++)
        if (open->info[i] == info)
            open->info[i] = 0;
    open->stolen_pkt = packet ? pkt : 0;
    open->stolen_packet = packet;
}

/* The generation of the namespace's ruleset: newer kernels have it in struct net, others in nf_tables' data of the namespace,
 * which net_generic() finds by the module's number. */
static __always_inline u32 nft_generation(struct net *net)
{
#if defined(HAVE_net_nft_base_seq)
    return PEEK(net, nft_base_seq);
#elif defined(HAVE_nftables_pernet_base_seq) && defined(HAVE_net_gen) && defined(ADDRESS_nf_tables_net_id)
    struct nftables_pernet *own = 0;
    u64 generic = (u64)PEEK(net, gen);
    u32 id = 0;

    bpf_probe_read_kernel(&id, sizeof(id), (void *)ADDRESS_nf_tables_net_id);
    bpf_probe_read_kernel(&own, sizeof(own), (void *)(generic + id * sizeof(u64)));
    return own ? PEEK(own, base_seq) : 0;
#else
    return 0;
#endif
}

/* Lower half of the namespace's cookie; 0 if user space cannot read cookies (tracer/node/netns_cookie.py), though the kernel
 * has one. The field is a number or an atomic number; C cannot distinguish them here. */
static __always_inline u32 cookie_of(struct net *net)
{
    u32 cookie = 0;

#if defined(HAVE_net_net_cookie) && defined(NETNS_COOKIES)
    bpf_probe_read_kernel(&cookie, sizeof(cookie), (void *)net + OFFSET_net_net_cookie);
#endif
    return cookie;
}

/* 1 for NF_ACCEPT and the like; NF_QUEUE has the number of the queue in its upper half, so it may be negative. */
static __always_inline int is_final(u32 code)
{
    return code < (u32)NFT_LAST_CODE;
}

static __always_inline u64 nft_handle(u64 rule)
{
    if (!rule)
        return 0;
#if defined(HAVE_nft_rule_dp_handle)
    return PEEK_BITS(rule, nft_rule_dp_handle);
#elif defined(HAVE_nft_rule_handle)
    return PEEK_BITS(rule, nft_rule_handle);
#else
    return 0;
#endif
}

/* The packet's entry, looked up at the first call of a run; NULL = unwanted. gone = 1: the packet may have been freed; it is
 * only identified if it was seen before the rule stole it. */
static __always_inline struct tracked_skb *track_in_run(struct call *c, struct nft_run *run, struct sk_buff *skb,
                                                    struct nf_hook_state *state, u64 chain, u64 pkt, u8 gone)
{
    struct observation *s = observation_of(c);
    struct tracked_skb *e = 0;
    struct hook_step step;

    if (run->skb == (u64)skb && run->chain == chain) {
        if (run->packet)
            e = find_tracked((u64)skb);
        if (e && e->packet != run->packet)
            e = 0;
    } else if (gone) {
        e = stolen_in_run(pkt, (u64)skb);
        run->depth = 0;
    } else {
        step = observe_in_hook(c, skb, state, s);
        if (s && !step.unwanted)
            e = track_in_hook(c, skb, state, step, priority_of_chain(chain), s);
        run->depth = 0;
    }
    run->skb = (u64)skb;
    run->chain = chain;
    run->packet = e ? e->packet : 0;
    return e;
}

/* Writes the fields that only a whole record has: the key of a map look-up, and the target of a jump. */
static __always_inline void write_nft_choice(struct nft_rule_trace *out, struct nft_verdict *verdict, struct nft_table *table,
                                             int code)
{
    struct nft_chain *to;

    bpf_probe_read_kernel(&out->registers, sizeof(out->registers), (void *)verdict + REGISTERS_AFTER_VERDICT);
    bpf_probe_read_kernel_str(&out->table, sizeof(out->table), PEEK(table, name));
    if (code == NFT_JUMP || code == NFT_GOTO) {
        to = PEEK(verdict, chain);
        out->to_handle = PEEK(to, handle);
        bpf_probe_read_kernel_str(&out->to, sizeof(out->to), PEEK(to, name));
    }
}

/* For a packet that --drops-only excludes (see drops_only_excludes) no record is written until a rule drops it; the jumps on its path are
 * kept until then.
 *
 * At the end of a chain the packet continues after the last jump; the gotos since then are removed, too. */
static __always_inline void forget_jump(struct nft_run *run)
{
#pragma clang loop unroll(disable)
    for (int i = 0; i < NFT_JUMPS && run->depth; i++) {
        run->depth--;
        if (run->jumps[run->depth & (NFT_JUMPS - 1)].code != (u32)NFT_GOTO)
            break;
    }
}

/* Space for a jump to be kept; NULL = no space. */
static __always_inline struct nft_rule_trace *keep_jump(struct nft_run *run, struct tracked_skb *e)
{
    struct nft_rule_trace *out = &run->jumps[run->depth & (NFT_JUMPS - 1)];

    if (run->depth >= NFT_JUMPS)
        return 0;
    run->depth++;
    __builtin_memset(out, 0, sizeof(*out));
    write_head((void *)out, e, EVENT_NFT_RULE, 0);
    return out;
}

static __always_inline void write_jumps(struct nft_run *run, struct tracked_skb *e)
{
#pragma clang loop unroll(disable)
    for (int i = 0; i < NFT_JUMPS; i++) {
        struct reserved r;
        u16 hop;
        if (i >= run->depth)
            break;
        r = reserve_whole(e, EVENT_NFT_RULE);
        if (!r.out)
            break;
        hop = r.out->hop;
        bpf_probe_read_kernel(r.out, sizeof(struct nft_rule_trace), &run->jumps[i]);
        r.out->hop = hop;
        submit_event(r);
    }
    run->depth = 0;
}

/* arg: trace info, packet info, verdict, rule, type; the middle three are 0 if the trace info holds them */
static __always_inline int nft_rule_entered(struct call *c)
{
    struct nft_traceinfo *info = (void *)c->arg[0];
    struct nft_pktinfo *pkt = (void *)c->arg[1];
    struct nft_verdict *verdict = (void *)c->arg[2];
    u64 rule = c->arg[3], chain, handle;
    u8 trace = c->arg[4], policy, decision;
    struct nft_base_chain *base;
    struct nf_hook_state *state;
    struct nft_run *run;
    struct nft_table *table;
    struct sk_buff *skb;
    struct nft_rule_trace *out;
    struct reserved r;
    struct tracked_skb *e;
    int code, ended, silent, jumps;

#ifdef HAVE_nft_traceinfo_pkt
    if (!pkt)
        pkt = READ(c, info, pkt);
#endif
    skb = READ(c, pkt, skb);
    if (in_negative_cache(c, READ(c, skb, _nfct)))
        return 0;
#ifdef HAVE_nft_traceinfo_verdict
    if (!verdict)
        verdict = (void *)READ(c, info, verdict);
#endif
#ifdef HAVE_nft_traceinfo_rule
    if (!rule)
        rule = (u64)PEEK(info, rule);
#endif
    base = (void *)PEEK(info, basechain);
    chain = (u64)base + OFFSET_nft_base_chain_chain;
    state = CHAIN_STATE(c, pkt);
    code = PEEK(verdict, code);
    policy = PEEK(base, policy);
    ended = trace == TRACE_POLICY || (trace == TRACE_RULE && is_final(code));
    decision = trace == TRACE_POLICY ? policy : ended ? code & NF_VERDICT_MASK : NF_ACCEPT;
    run = run_with(c->arg[0]);
    if (!run)
        return 0;
    e = track_in_run(c, run, skb, state, chain, (u64)pkt, decision == NF_STOLEN);
    if (ended)
        close_run(c->arg[0], (u64)pkt, e && decision == NF_STOLEN ? e->packet : 0);
    if (!e)
        return 0;
    silent = drops_only_excludes(e, READ(c, skb, _nfct));
    /* After the last rule of a chain is one without a handle; older kernels report that it returned. */
    handle = trace == TRACE_POLICY || (trace == TRACE_RETURN && code == NFT_CONTINUE) ? 0 : nft_handle(rule);
    jumps = trace == TRACE_RULE && (code == NFT_JUMP || code == NFT_GOTO);
    if (silent && trace != TRACE_POLICY && (!handle || code == NFT_LAST_CODE))
        forget_jump(run);
    if (silent && decision != NF_DROP && !jumps)
        return 0;
    if (silent && decision == NF_DROP)
        write_jumps(run, e);
    table = PEEK((struct nft_chain *)chain, table);
    if (silent && jumps) {
        out = keep_jump(run, e);
        if (!out)
            return 0;
        write_nft_choice(out, verdict, table, code);
    } else if (handle) {
        r = reserve_whole(e, EVENT_NFT_RULE);
        if (!r.out)
            return 0;
        out = (void *)r.out;
        write_nft_choice(out, verdict, table, code); /* here, because the verifier of 6.1 knows the size of the record here */
    } else {
        r = reserve_short(e, EVENT_NFT_RULE);
        if (!r.out)
            return 0;
        out = (void *)r.out;
    }
    out->object = chain;
    out->run = (u64)pkt;
    out->netns = netns_of(c, READ(c, state, net));
    out->cookie = cookie_of(READ(c, state, net));
    out->hook = READ(c, state, hook);
    out->pf = READ(c, state, pf);
    out->generation = nft_generation(READ(c, state, net));
    out->trace = trace;
    out->policy = policy;
    out->code = code;
    out->handle = handle;
    out->table_handle = PEEK(table, handle);
    out->chain_handle = PEEK((struct nft_chain *)chain, handle);
    out->family = nft_family(table);
    if (decision != NF_STOLEN)
        out->mark = READ(c, skb, mark);
    if (!silent || !jumps)
        submit_event(r);
    return 0;
}

PROBE_ENTRY(nft_rule)
#endif
