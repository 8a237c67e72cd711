/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A call within another one: while a program runs for a packet that a process sends, an interrupt comes, and the packets of its
 * softirq meet the same program.
 *
 * Since kernel commit ca06f55b9002 ("bpf: Add per-program recursion prevention mechanism", 5.12) the kernel skips the program then,
 * and counts that. So where that happens, a pair of programs takes the place of a row's single program: the same code, with
 * other constants (tracer/kernel/program_pairs.py). A trampoline runs the program first that was attached last (hlist_add_head in
 * bpf_trampoline_link_prog), so the second one of the pair, which notes each call that it handles. The first one handles a call
 * without such a note: one for which the second one was skipped. A call is known by its context, the address of its arguments on
 * the stack, which is another one in each of the calls that are under way on a CPU.
 *
 * Earlier kernels run the program again instead, and the inner call needs an observation of its own. */

#ifdef HAVE_bpf_prog_active
enum pair_state {
    PAIR_OFF,     /* the single program handles the calls */
    PAIR_REPLACES, /* the single program is being detached, or attached: no program may handle a call */
    PAIR_ON
};

struct program_pairs {
    u8 state[MOST_ROWS]; /* enum pair_state by row; the reader writes this */
};

BPF_ARRAY(program_pairs, struct program_pairs, 1);

static __always_inline u8 pair_state(u32 row)
{
    int zero = 0;
    struct program_pairs *pairs = program_pairs.lookup(&zero);
    return pairs ? pairs->state[row & (MOST_ROWS - 1)] : PAIR_OFF;
}

/* For the second program: 1 if it has to handle this call. */
static __always_inline int handles_as_second(u32 row, u64 *ctx, struct row_calls *calls)
{
    int place;
    u8 state;

    *(volatile u8 *)&calls->is_running = 1; /* as early as possible: see handles_as_first */
    state = pair_state(row);
    if (state != PAIR_ON) {
        if (state == PAIR_REPLACES)
            count_unhandled(row);
        *(volatile u8 *)&calls->is_running = 0;
        return 0;
    }
    calls->had_second = 1;
    if (calls->handled[1] == (u64)ctx)
        calls->handled[1] = 0; /* of an earlier call, for which the first program was skipped */
    place = calls->handled[0] && calls->handled[0] != (u64)ctx;
    calls->handled[place] = (u64)ctx;
    return 1;
}

/* For the first program: 1 if it has to handle this call. While the second one is running, it was skipped for this call, and a
 * note of the same context is of an earlier call, for which the first program was skipped. */
static __always_inline int handles_as_first(u32 row, u64 *ctx, struct row_calls *calls)
{
    if (pair_state(row) != PAIR_ON)
        return 0;
    if (!calls->is_running && calls->handled[0] == (u64)ctx) {
        calls->handled[0] = 0;
        calls->handled[1] = 0; /* of a call within this one, for which the first program was skipped */
        return 0;
    }
    if (!calls->is_running && calls->handled[1] == (u64)ctx) {
        calls->handled[1] = 0;
        return 0;
    }
    if (calls->had_second)
        count_nested(row);
    return 1;
}

/* Returns 1 if this program handles the call. nested: see struct call. here: stays NULL in a single program. */
static __always_inline int begin_call(u32 row, u64 *ctx, u64 *nested, struct cpu_state **here)
{
    struct row_calls *calls;

    if (!IS_PAIRED)
        return 1;
    *here = cpu_state_here();
    if (!*here)
        return 0;
    calls = &(*here)->calls[row & (MOST_ROWS - 1)];
    return *nested ? handles_as_second(row, ctx, calls) : handles_as_first(row, ctx, calls);
}

static __always_inline void end_call(u32 row, u64 nested, struct cpu_state *here)
{
    if (nested && here)
        *(volatile u8 *)&here->calls[row & (MOST_ROWS - 1)].is_running = 0;
}
#else
/* Without a branch: older verifiers would follow the whole program twice. */
static __always_inline int begin_call(u32 row, u64 *ctx, u64 *nested, struct cpu_state **here)
{
    volatile u8 *is_running;

    *here = cpu_state_here();
    if (!*here)
        return 0;
    is_running = &(*here)->calls[row & (MOST_ROWS - 1)].is_running;
    *nested = (*is_running & 1) * MOST_ROWS;
    *is_running = 1;
    return 1;
}

/* The outer call, if there is one, still runs. */
static __always_inline void end_call(u32 row, u64 nested, struct cpu_state *here)
{
    if (here)
        *(volatile u8 *)&here->calls[row & (MOST_ROWS - 1)].is_running = nested / MOST_ROWS;
}
#endif
