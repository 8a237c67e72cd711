/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The steps of a legacy table: the calls of its match and target functions, in order. They show which rule acted.
 *
 * ipt_do_table calls these functions through pointers, with (skb, par). par->matchinfo and par->targinfo point into the
 * table's rules, so their offset from the first rule identifies the rule; the offset is the same in the copy of the rules that
 * user space reads. Parts of a rule without a function (an address, an interface, a plain ACCEPT) are computed in user space.
 *
 * The probes run for every evaluated rule, for every packet. So the probe at the table's entry stores its packet for this CPU,
 * except for an unwanted packet, and the other probes return at once for any other packet. The steps are written when the
 * table has returned and its event is written.
 *
 * REJECT sends its answer within its table's run, TEE its copy. And ipt_do_table ends with local_bh_enable; then softirqs may
 * run tables for other packets before the probe at its return runs. So each CPU has space for several runs.
 *
 * A table runs on one CPU, since ipt_do_table disables softirqs. But after local_bh_enable a preemptive kernel may move the
 * process to another CPU, and the probe at the return runs there. It then takes the run from the first CPU: the runs of all
 * CPUs are in one array. */

#define RUNS 4
#define RUN_TICKS 25      /* jiffies after which a run without a return is replaced */
#define WAITING_TICKS 250 /* longest wait of a run's process for another CPU, jiffies */
#define STEPS_KEPT 104 /* two records */
#define NOWHERE 0x3fffffff
#define JUMPS_KEPT 7

enum { STEP_FALSE, STEP_TRUE, STEP_UNKNOWN, STEP_TARGET };

#if RULE_STEPS
_Static_assert(sizeof(struct table_trace) == sizeof(struct event), "one size");
_Static_assert(__builtin_offsetof(struct table_trace, kind) == __builtin_offsetof(struct event, kind), "kind");
_Static_assert(__builtin_offsetof(struct table_trace, joint1) == SHORT_EVENT, "slots");
_Static_assert(__builtin_offsetof(struct table_trace, joint2) == __builtin_offsetof(struct event, joint2), "slots");

struct run {
    u64 private; /* struct xt_table_info of the table */
    u64 table;
    u64 task;    /* the process in whose context it runs */
    u32 mark;
    u32 count; /* number of steps, also those not kept */
    u32 connection; /* connection_bits() when it began */
    u32 hotdrop; /* number, from 1, of the step with a match that dropped the packet; 0 = none */
    u32 jumps[JUMPS_KEPT];
    u32 steps[128];
};

/* The fields that every call reads first are in one cache line. */
struct runs {
    u64 skb[RUNS]; /* packet of each run, 0 = free */
    u64 entered;     /* 1 + the number of the run with a match function that is running; 0 = none */
    u64 until[RUNS]; /* jiffies: time after which the return of a run counts as missed */
    u64 par; /* argument of the running match function, for kretprobes, which have no arguments */
    u64 moved; /* see moved_from */
    struct run run[RUNS];
    u64 apart[8]; /* unused: no cache line belongs to two CPUs */
};

BPF_ARRAY(table_runs, struct runs, CPUS);

static __always_inline struct runs *runs_here(void)
{
    int cpu = bpf_get_smp_processor_id();
    return table_runs.lookup(&cpu);
}

/* The number of this packet's run on this CPU; RUNS = none. */
static __always_inline u32 run_of(struct runs *runs, u64 skb)
{
#pragma unroll
    for (int i = 0; i < RUNS; i++)
        if (runs->skb[i] == skb)
            return i;
    return RUNS;
}

/* arg: skb, table */
static __always_inline int table_begin_entered(struct call *c)
{
    struct sk_buff *skb = (void *)c->arg[0];
    struct xt_table *table = (void *)c->arg[1];
    struct runs *runs;
    u64 now, nfct = READ(c, skb, _nfct);
    u32 free = RUNS - 1;
    struct run *r;

    if (in_negative_cache(c, nfct))
        return 0;
    runs = runs_here();
    if (!runs)
        return 0;
    now = bpf_jiffies64();
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        if (!runs->skb[i] || runs->skb[i] == c->arg[0] || now > runs->until[i]) {
            free = i;
            break;
        }
    }
    runs->skb[free & (RUNS - 1)] = c->arg[0];
    runs->until[free & (RUNS - 1)] = now + RUN_TICKS;
    r = &runs->run[free & (RUNS - 1)];
    r->private = (u64)LOAD_FIELD(c, table, private);
    r->table = c->arg[1];
    r->task = bpf_get_current_task();
    r->mark = READ(c, skb, mark);
    r->connection = connection_bits(c, nfct);
    r->count = r->hotdrop = 0;
    return 0;
}
#define table4_begin_entered table_begin_entered
#define table6_begin_entered table_begin_entered
PROBE_ENTRY(table4_begin)
PROBE_ENTRY(table6_begin)

/* The run of this packet's table on that CPU; NULL = none. free_run frees it after it has been written: a softirq may begin
 * another packet's run between two programs, and interrupt one. */
static __always_inline struct run *end_run(u64 skb, int cpu)
{
    struct runs *runs = table_runs.lookup(&cpu);
    u32 i = runs ? run_of(runs, skb) : RUNS;

    return runs && i < RUNS ? &runs->run[i & (RUNS - 1)] : 0;
}

static __always_inline void free_run(u64 skb, int cpu)
{
    struct runs *runs = table_runs.lookup(&cpu);
    u32 i = runs ? run_of(runs, skb) : RUNS;

    if (runs && i < RUNS)
        runs->skb[i & (RUNS - 1)] = 0;
}

/* The CPU on which this packet's run of this table began, if its process has moved to another CPU since; CPUS = none. Called
 * only if this CPU has no run of a tracked packet, which is rare. The result is in the map: in a register it would be a
 * further state for the verifier for each CPU. */
static __always_inline int moved_from(u64 skb, u64 table)
{
    u64 task = bpf_get_current_task(), now = bpf_jiffies64();
    struct runs *here = runs_here(), *runs;
    struct run *r;
    int cpu;
    u32 i;

    if (!here)
        return CPUS;
    *(volatile u64 *)&here->moved = CPUS;
#pragma clang loop unroll(disable)
    for (int n = 0; n < CPUS; n++) {
        cpu = n;
        runs = table_runs.lookup(&cpu);
        i = runs ? run_of(runs, skb) : RUNS;
        if (!runs || i >= RUNS || now > runs->until[i & (RUNS - 1)] + WAITING_TICKS)
            continue;
        r = &runs->run[i & (RUNS - 1)];
        if (r->task == task && r->table == table)
            *(volatile u64 *)&here->moved = n;
    }
    return *(volatile u64 *)&here->moved;
}

/* Offset of an address from the first rule of this run, in words of 8 bytes. */
static __always_inline u32 step_place(struct run *r, u64 address)
{
    u64 at = (address - r->private - OFFSET_xt_table_info_entries) >> 3;
    return at < NOWHERE ? at : NOWHERE;
}

static __always_inline void add_step(struct run *r, u64 info, u32 what)
{
    u32 n = r->count++;

    if (n < STEPS_KEPT)
        r->steps[n & 127] = step_place(r, info) << 2 | what;
}

/* A match that finds a packet malformed sets par->hotdrop: the table then ends and drops it, with any target of the
 * rule. */
#ifdef HAVE_xt_action_param_hotdrop
#define HOTDROP_SEEN(r) ((r)->hotdrop + 1)
#else
#define HOTDROP_SEEN(r) 0
#endif

static __always_inline void add_hotdrop(struct run *r, u32 hotdrop)
{
    if (hotdrop && !r->hotdrop)
        r->hotdrop = r->count;
}

static __always_inline int match_returned(u64 skb, u64 info, u32 what, u32 hotdrop, u64 par)
{
    struct runs *runs = runs_here();
    u32 i = runs ? run_of(runs, skb) : RUNS;

    if (!runs || i >= RUNS)
        return 0;
    add_step(&runs->run[i], info, what);
    add_hotdrop(&runs->run[i], hotdrop);
    runs->entered = what == STEP_UNKNOWN ? 1 + i : 0;
    runs->par = par;
    return 0;
}

/* At return, by kretprobe: stores the result of the match function called last on this CPU. */
static __always_inline int match_answered(u32 answer)
{
    struct runs *runs = runs_here();
    struct run *r;
    u32 last;

    if (!runs || !runs->entered)
        return 0;
    r = &runs->run[(runs->entered - 1) & (RUNS - 1)];
    runs->entered = 0;
    last = r->count - 1;
#ifdef HAVE_xt_action_param_hotdrop
    add_hotdrop(r, PEEK((struct xt_action_param *)runs->par, hotdrop));
#endif
    if (last < STEPS_KEPT && (r->steps[last & 127] & 3) == STEP_UNKNOWN)
        r->steps[last & 127] = (r->steps[last & 127] & ~3) | (answer & 255 ? STEP_TRUE : STEP_FALSE);
    return 0;
}

/* Stores the jump rules that led to the current rule; entries above the current depth are stale. */
static __always_inline void add_jumps(struct run *r)
{
    struct xt_table_info *private = (void *)r->private;
    u64 stacks = (u64)PEEK(private, jumpstack), stack = 0, jumps[JUMPS_KEPT] = {};

    if (stacks)
        bpf_probe_read_kernel(&stack, sizeof(stack), (void *)(stacks + 8 * bpf_get_smp_processor_id()));
    if (stack)
        bpf_probe_read_kernel(&jumps, sizeof(jumps), (void *)stack);
#pragma unroll
    for (int i = 0; i < JUMPS_KEPT; i++)
        r->jumps[i] = step_place(r, jumps[i]);
}

static __always_inline int target_called(u64 skb, u64 info)
{
    struct runs *runs = runs_here();
    u32 i = runs ? run_of(runs, skb) : RUNS;

    if (!runs || i >= RUNS)
        return 0;
    add_step(&runs->run[i], info, STEP_TARGET);
    add_jumps(&runs->run[i]);
    return 0;
}
#endif
