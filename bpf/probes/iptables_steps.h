/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Which rule of a legacy table acted: what the table's match and target functions were asked, in order.
 *
 * ipt_do_table calls them through pointers, with (skb, par). par->matchinfo and par->targinfo point into the table's rules,
 * so their distance from the first rule says which rule was looked at: it is the same in the copy of the rules that user
 * space reads. What calls no function (an address, an interface, a plain ACCEPT) is computed there, from these steps.
 *
 * They run for every rule looked at, for every packet. So a table's entry notes its packet for this CPU, unless it is known
 * that nobody wants it, and they leave at once for any other. Nothing is written before the table returns and its event is.
 *
 * A REJECT sends its answer inside of its table's run, and TEE its copy. And ipt_do_table ends with local_bh_enable, which lets
 * softirqs carry other packets through their tables before the probe of its return runs. So a CPU has room for several runs.
 *
 * The rules of a table are gone through on one CPU, for ipt_do_table disables softirqs. But where local_bh_enable ends that, a
 * kernel that preempts itself may give the process to another CPU, so that the probe of the return runs there. It then takes
 * the run from the CPU that has it: the runs of all CPUs are in one array. */

#define RUNS 4
#define RUN_TICKS 25      /* a run's place is given to another one when its return has not come by then */
#define WAITING_TICKS 250 /* so long the process of a run may have waited for another CPU */
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
    u64 task;    /* the process on which it runs */
    u32 mark;
    u32 count; /* steps taken, kept or not */
    u32 hotdrop; /* number of the step, from 1, whose match threw the packet away; 0 = none did */
    u32 jumps[JUMPS_KEPT];
    u32 steps[128];
};

/* What every call looks at first is in one cache line. */
struct runs {
    u64 skb[RUNS]; /* whose run it is, 0 = none */
    u64 asked;     /* a match function is running: 1 + the number of its run */
    u64 until[RUNS]; /* jiffies: when a run's return must have been missed */
    u64 par; /* of the match function that is running, where its return sees no arguments */
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

/* The run of this packet on this CPU, by its number; RUNS when there is none. */
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
    struct runs *runs = runs_here();
    u64 now = bpf_jiffies64();
    u32 free = RUNS - 1;
    struct run *r;

    if (!runs || is_cached_unwanted(READ(c, skb, _nfct)))
        return 0;
#pragma unroll
    for (int i = RUNS - 1; i >= 0; i--)
        if (!runs->skb[i] || runs->skb[i] == c->arg[0] || now > runs->until[i])
            free = i;
    runs->skb[free & (RUNS - 1)] = c->arg[0];
    runs->until[free & (RUNS - 1)] = now + RUN_TICKS;
    r = &runs->run[free & (RUNS - 1)];
    r->private = (u64)PEEK(table, private);
    r->table = c->arg[1];
    r->task = bpf_get_current_task();
    r->mark = READ(c, skb, mark);
    r->count = r->hotdrop = 0;
    return 0;
}
#define table4_begin_entered table_begin_entered
#define table6_begin_entered table_begin_entered
PROBE_ENTRY(table4_begin)
PROBE_ENTRY(table6_begin)

/* What the run of this packet's table noted on that CPU; NULL if nothing was. Its place is given back by free_run, when that has
 * been written: a softirq may begin another packet's run between two programs, and on top of one. */
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

/* The CPU on which this packet's run of this table began, if its process has been moved to another one since; CPUS if there is
 * none. Asked only where this CPU has no run of a packet that is told, which is rare. What is found is kept in the map: in a
 * register it would be another state for the verifier with each CPU. */
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

/* An address in the rules of this run, as words of 8 bytes from the first rule. */
static __always_inline u32 step_place(struct run *r, u64 address)
{
    u64 at = (address - r->private - OFFSET_xt_table_info_entries) >> 3;
    return at < NOWHERE ? at : NOWHERE;
}

static __always_inline void note_step(struct run *r, u64 info, u32 what)
{
    u32 n = r->count++;

    if (n < STEPS_KEPT)
        r->steps[n & 127] = step_place(r, info) << 2 | what;
}

/* A match that finds a packet malformed sets par->hotdrop: the table then ends there and drops it, whatever the rule says. */
#ifdef HAVE_xt_action_param_hotdrop
#define HOTDROP_SEEN(r) ((r)->hotdrop + 1)
#else
#define HOTDROP_SEEN(r) 0
#endif

static __always_inline void note_hotdrop(struct run *r, u32 hotdrop)
{
    if (hotdrop && !r->hotdrop)
        r->hotdrop = r->count;
}

static __always_inline int match_asked(u64 skb, u64 info, u32 what, u32 hotdrop, u64 par)
{
    struct runs *runs = runs_here();
    u32 i = runs ? run_of(runs, skb) : RUNS;

    if (!runs || i >= RUNS)
        return 0;
    note_step(&runs->run[i], info, what);
    note_hotdrop(&runs->run[i], hotdrop);
    runs->asked = what == STEP_UNKNOWN ? 1 + i : 0;
    runs->par = par;
    return 0;
}

/* The kretprobe's half: the match function that was asked last on this CPU has answered. */
static __always_inline int match_answered(u32 answer)
{
    struct runs *runs = runs_here();
    struct run *r;
    u32 last;

    if (!runs || !runs->asked)
        return 0;
    r = &runs->run[(runs->asked - 1) & (RUNS - 1)];
    runs->asked = 0;
    last = r->count - 1;
#ifdef HAVE_xt_action_param_hotdrop
    note_hotdrop(r, PEEK((struct xt_action_param *)runs->par, hotdrop));
#endif
    if (last < STEPS_KEPT && (r->steps[last & 127] & 3) == STEP_UNKNOWN)
        r->steps[last & 127] = (r->steps[last & 127] & ~3) | (answer & 255 ? STEP_TRUE : STEP_FALSE);
    return 0;
}

/* The rules jumped from to get here; what stands above the current depth is left from earlier. */
static __always_inline void note_jumps(struct run *r)
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

static __always_inline int target_asked(u64 skb, u64 info)
{
    struct runs *runs = runs_here();
    u32 i = runs ? run_of(runs, skb) : RUNS;

    if (!runs || i >= RUNS)
        return 0;
    note_step(&runs->run[i], info, STEP_TARGET);
    note_jumps(&runs->run[i]);
    return 0;
}
#endif
