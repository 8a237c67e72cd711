/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How a probe's C function gets its arguments, whichever way it is attached.
 *
 * tracer/kernel/attach_plan.py decides for each row of the probe table (tracer/kernel/probes.py) which symbol it uses, in which
 * way and where the wanted arguments are (from BTF, never from a version), and writes that as macros into plan.h:
 *
 *     #define WAY_hook  FEXIT                              or KRETPROBE, FENTRY, KPROBE, RAWTP, OFF
 *     #define PROGRAM_hook kretfunc__vmlinux__nf_hook_slow  the name bcc wants for it
 *     #define ARGS_hook(GET, ctx) { GET(ctx, 1), GET(ctx, 2) }
 *     #define RETURN_hook 5                                 where fexit finds the return value
 *
 * A row's C is one or two functions on `struct call`; PROBE_ENTRY or PROBE_RETURN makes the program around them. */

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

#define GET_REGISTER(ctx, n) (u64) CAT(PT_REGS_PARM, n)(ctx)
#define GET_SLOT(ctx, n) ((ctx)[(n) - 1])

/* A pointer to a number. Until kernel commit bb6728d75611 ("bpf: Allow access to int pointer arguments in tracing programs",
 * 5.17) the verifier refuses to load one that is no pointer to a structure; what it may not load can be copied. */
static __always_inline u64 copied_slot(u64 *ctx, int n)
{
    u64 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), ctx + n - 1);
    return value;
}
#define GET_REGISTER_OF_NUMBER GET_REGISTER
#define GET_SLOT_OF_NUMBER copied_slot

/* A seventh argument is on the stack above the return address (x86), or in a register (arm64). */
static __always_inline u64 seventh_argument(struct pt_regs *ctx)
{
#ifdef HAVE_pt_regs_regs
    return ctx->regs[6];
#else
    u64 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), (void *)(ctx->sp + 8));
    return value;
#endif
}
#define PT_REGS_PARM7(ctx) seventh_argument(ctx)

struct call {
    u64 arg[5]; /* the arguments the row names, in that order */
    u64 ret;    /* only after the function returned */
    int number; /* of the row */
    int direct; /* the verifier knows the arguments' types */
};

/* Reads a field of a kernel structure; the structures have their real offsets, from BTF.
 *
 * PEEK always goes through the helper. READ is for pointers that are arguments, or were read from one: where the verifier
 * knows their type (fentry, fexit) it is a plain load, a tenth of the helper's cost; `direct` is a constant in each program,
 * so the other branch is not even compiled. It is volatile because the verifier wants one load a field, and the compiler would
 * join neighbours. */
#define PEEK(p, field)                                                                                                 \
    ({                                                                                                                 \
        typeof((p)->field) value_ = 0;                                                                                 \
        bpf_probe_read_kernel(&value_, sizeof(value_), (const void *)&(p)->field);                                     \
        value_;                                                                                                        \
    })
#define READ(c, p, field)                                                                                              \
    ({                                                                                                                 \
        typeof((p)->field) read_;                                                                                      \
        if ((c)->direct)                                                                                               \
            read_ = *(volatile typeof((p)->field) *)&(p)->field;                                                       \
        else                                                                                                           \
            read_ = PEEK(p, field);                                                                                    \
        read_;                                                                                                         \
    })

/* ---- at function entry */
#define PROBE_ENTRY(row) CAT(ENTRY_, WAY_##row)(row)
#define ENTRY_OFF(row)
#define ENTRY_FENTRY(row)                                                                                              \
    int PROGRAM_##row(u64 *ctx)                                                                                        \
    {                                                                                                                  \
        struct call call = {.arg = ARGS_##row(GET_SLOT, ctx), .number = NUMBER_##row, .direct = DIRECT_##row};         \
        return row##_entered(&call);                                                                                   \
    }
#define ENTRY_RAWTP(row) ENTRY_FENTRY(row)
#define ENTRY_KPROBE(row)                                                                                              \
    int PROGRAM_##row(struct pt_regs *ctx)                                                                             \
    {                                                                                                                  \
        struct call call = {.arg = ARGS_##row(GET_REGISTER, ctx), .number = NUMBER_##row};                             \
        return row##_entered(&call);                                                                                   \
    }

/* ---- at function return
 *
 * fexit sees arguments and return value at once. A kretprobe sees only the return value, so a kprobe keeps the arguments
 * until then: under the stack address of the call, never under the pid, because softirqs run on top of any process and
 * the idle task of every CPU is pid 0. row_keep() says whether this call is worth keeping. A kretprobe can be missed
 * (no free instance), so kept minus returned (records/loss_counters.h) is what the user is told was missed. */
struct kept_call {
    struct call call;
};
BPF_TABLE("lru_hash", u64, struct kept_call, kept_calls, 4096);

static __always_inline int keep(u64 stack, struct call *call)
{
    struct kept_call k = {.call = *call};
    kept_calls.update(&stack, &k);
    count_kept(k.call.number);
    return 0;
}

/* bcc knows map calls only outside macros, so this is a function. Returns 0 when this call was not kept. */
static __always_inline int take_kept(u64 stack, int row, struct call *call)
{
    struct kept_call *k = kept_calls.lookup(&stack);

    if (!k)
        return 0;
    *call = k->call;
    kept_calls.delete(&stack);
    count_returned(row);
    return 1;
}

/* The return address is pushed before entry and popped before the kretprobe runs: x86 differs by one word, arm64 keeps
 * it in a register and does not. */
#if defined(__TARGET_ARCH_x86) || defined(bpf_target_x86)
#define STACK_AT_RETURN(ctx) ((u64)PT_REGS_SP(ctx) - sizeof(u64))
#else
#define STACK_AT_RETURN(ctx) ((u64)PT_REGS_SP(ctx))
#endif

#define PROBE_RETURN(row) CAT(RETURN_WAY_, WAY_##row)(row)
#define RETURN_WAY_OFF(row)
#define RETURN_WAY_FEXIT(row)                                                                                          \
    int PROGRAM_##row(u64 *ctx)                                                                                        \
    {                                                                                                                  \
        struct call call = {.arg = ARGS_##row(GET_SLOT, ctx), .number = NUMBER_##row, .direct = DIRECT_##row};         \
        call.ret = GET_SLOT(ctx, RETURN_##row);                                                                        \
        return row##_returned(&call);                                                                                  \
    }
#define RETURN_WAY_KRETPROBE(row)                                                                                      \
    int CAT(enter_, PROGRAM_##row)(struct pt_regs *ctx)                                                                \
    {                                                                                                                  \
        struct call call = {.arg = ARGS_##row(GET_REGISTER, ctx), .number = NUMBER_##row};                             \
        if (!row##_keep(&call))                                                                                        \
            return 0;                                                                                                  \
        return keep(PT_REGS_SP(ctx), &call);                                                                           \
    }                                                                                                                  \
    int PROGRAM_##row(struct pt_regs *ctx)                                                                             \
    {                                                                                                                  \
        struct call call = {};                                                                                         \
        if (!take_kept(STACK_AT_RETURN(ctx), NUMBER_##row, &call))                                                     \
            return 0;                                                                                                  \
        call.number = NUMBER_##row, call.direct = DIRECT_##row; /* constants again */                                  \
        call.ret = PT_REGS_RC(ctx);                                                                                    \
        return row##_returned(&call);                                                                                  \
    }
