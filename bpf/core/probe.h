/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* How the C function of a probe gets its arguments, for each way of attaching.
 *
 * For each row of the probe table (tracer/kernel/probes.py) tracer/kernel/attach_plan.py chooses the symbol, the way of
 * attaching and the positions of the arguments (from BTF, never from a version). It writes them as macros into plan.h:
 *
 *     #define WAY_hook  FEXIT                              or KRETPROBE, FENTRY, KPROBE, RAWTP, BTFTP, OFF
 *     #define PROGRAM_hook on_hook                         name of the program
 *     #define ARGS_hook(GET, ctx) { GET(ctx, 1), GET(ctx, 2) }
 *     #define RETURN_hook 5                                 position of the return value for fexit
 *
 * The C code of a row is one or two functions on `struct call`; PROBE_ENTRY or PROBE_RETURN generates the program for them. */

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

#define GET_REGISTER(ctx, n) (u64) CAT(PT_REGS_PARM, n)(ctx)
#define GET_SLOT(ctx, n) ((ctx)[(n) - 1])

/* Reads an argument that is a pointer to a number. Until kernel commit bb6728d75611 ("bpf: Allow access to int pointer
 * arguments in tracing programs", 5.17) the verifier only loads pointers to structures; others can be copied. */
static __always_inline u64 copied_slot(u64 *ctx, int n)
{
    u64 value = 0;
    bpf_probe_read_kernel(&value, sizeof(value), ctx + n - 1);
    return value;
}
#define GET_REGISTER_OF_NUMBER GET_REGISTER
#define GET_SLOT_OF_NUMBER copied_slot

/* The seventh argument: on the stack above the return address (x86), or in a register (arm64). */
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

/* A value that is known when the program is loaded, not when it is compiled: the instruction with this constant gets it then
 * (tracer/kernel/bytecode.py). The compiler must not compute with the constant. */
static __always_inline u64 load_constant(u64 constant)
{
    asm volatile("" : "+r"(constant));
    return constant;
}

struct cpu_state;

struct call {
    u64 arg[5]; /* the arguments of the row, in its order */
    u64 ret;    /* return value, only after the function returned */
    int number; /* number of the row */
    int direct; /* the verifier knows the types of the arguments */
    u64 nested; /* MOST_ROWS in a second program, and in a call within another one, else 0: see core/nested_call.h */
    struct cpu_state *here; /* 0 = not looked up */
};

/* Read a field of a kernel structure; the structures have their real offsets, from BTF.
 *
 * PEEK always uses the helper. READ is for pointers that are arguments, or were read from one: if the verifier knows their
 * type (fentry, fexit) it is a plain load, a tenth of the helper's cost; `direct` is a constant in each program, so the other
 * branch is not compiled. The load is volatile because the verifier requires one load for each field, and the compiler would
 * combine loads of adjacent fields. */
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

/* Memory at an address that is a number for the verifier. LOAD reads a value of this type, copy_words whole words. Both give
 * 0 where programs load it and it is not readable (tracer/kernel/kernel_memory.py); the helper is called elsewhere. */
#ifdef CALL_bpf_rdonly_cast
#define MOST_WORDS 15
#define CAN_LOAD(c) ((c)->direct) /* 0 = each LOAD is a call of the helper */
static __always_inline volatile u64 *words_at(u64 address)
{
    return ((volatile u64 * (*)(u64, u64)) CALL_bpf_rdonly_cast)(address, TYPE_OF_WORDS);
}

/* 0 = read. bytes: a constant, a multiple of 8. */
static __always_inline int copy_words(struct call *c, u64 *to, u64 bytes, u64 from)
{
    volatile u64 *words;

    if (!c->direct)
        return bpf_probe_read_kernel(to, bytes, (void *)from);
    words = words_at(from);
#pragma unroll
    for (int i = 0; i < MOST_WORDS; i++)
        if (i < bytes / 8)
            to[i] = words[i];
    return 0;
}
#define LOADED(value, address) value = *(volatile typeof(value) *)words_at(address)
#else
#define CAN_LOAD(c) 0
#define copy_words(c, to, bytes, from) bpf_probe_read_kernel(to, bytes, (void *)(from))
#define LOADED(value, address) bpf_probe_read_kernel(&value, sizeof(value), (void *)(address))
#endif
#define LOAD(c, type, address)                                                                                         \
    ({                                                                                                                 \
        type loaded_ = 0;                                                                                              \
        if ((c)->direct)                                                                                               \
            LOADED(loaded_, (u64)(address));                                                                           \
        else                                                                                                           \
            bpf_probe_read_kernel(&loaded_, sizeof(loaded_), (void *)(address));                                       \
        loaded_;                                                                                                       \
    })
#define LOAD_FIELD(c, p, field) LOAD(c, typeof((p)->field), &(p)->field)

/* ---- functions that programs call
 *
 * LLVM takes most of a cold start, and less when a large function is compiled once, not in each program. bcc cannot link functions.
 * So it compiles one as if it were a program; a call of it has a number that stands for its name, and the function is appended to
 * each program that calls it when that is loaded (tracer/kernel/bytecode.py). The argument is an array of three values on the
 * caller's stack. There are two copies of a function, as of READ: for programs with `direct`, and for the others. */
#define CALL(c, name) ((u64(*)(u64 *))((c)->direct ? CALL_##name##_direct : CALL_##name##_copied))
#define FUNCTION_COPY(name, suffix, is_direct)                                                                         \
    u64 name##suffix(u64 *in)                                                                                          \
    {                                                                                                                  \
        struct call call = {.arg = {in[0], in[1], in[2]}, .direct = is_direct};                                        \
        return (u64)name##_called(&call);                                                                              \
    }
#ifdef DIRECT_FUNCTIONS
#define DIRECT_FUNCTION(name) FUNCTION_COPY(name, _direct, 1)
#else
#define DIRECT_FUNCTION(name)
#endif
#ifdef COPIED_FUNCTIONS
#define COPIED_FUNCTION(name) FUNCTION_COPY(name, _copied, 0)
#else
#define COPIED_FUNCTION(name)
#endif
#define FUNCTION(name) DIRECT_FUNCTION(name) COPIED_FUNCTION(name)

/* ---- at function entry */
#define PROBE_ENTRY(row) CAT(ENTRY_, WAY_##row)(row)
#define ENTRY_OFF(row)
#define ENTRY_FENTRY(row)                                                                                              \
    int PROGRAM_##row(u64 *ctx)                                                                                        \
    {                                                                                                                  \
        u64 nested = NESTED_ROWS;                                                                                      \
        struct cpu_state *here = 0;                                                                                    \
                                                                                                                       \
        if (begin_call(NUMBER_##row, ctx, &nested, &here)) {                                                           \
            struct call call = {.arg = ARGS_##row(GET_SLOT, ctx), .number = NUMBER_##row, .direct = DIRECT_##row,      \
                                .nested = nested, .here = here};                                                       \
                                                                                                                       \
            row##_entered(&call);                                                                                      \
            end_call(NUMBER_##row, nested, here);                                                                      \
        }                                                                                                              \
        return 0;                                                                                                      \
    }
#define ENTRY_RAWTP(row) ENTRY_FENTRY(row)
#define ENTRY_BTFTP(row) ENTRY_FENTRY(row)
#define ENTRY_KPROBE(row)                                                                                              \
    int PROGRAM_##row(struct pt_regs *ctx)                                                                             \
    {                                                                                                                  \
        struct call call = {.arg = ARGS_##row(GET_REGISTER, ctx), .number = NUMBER_##row};                             \
        return row##_entered(&call);                                                                                   \
    }

/* ---- at function return
 *
 * fexit has arguments and return value together. A kretprobe has only the return value, so a kprobe stores the arguments.
 * The key is the stack address of the call, not the pid, because softirqs interrupt any process and the idle task of every
 * CPU is pid 0. row_keep() decides whether the arguments are stored. A kretprobe can be missed (no free instance): kept minus
 * returned (records/loss_counters.h) is the number of missed returns. */
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

/* A function, because bcc rewrites map calls only outside macros. Returns 0 if this call was not kept. */
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

/* On x86 the return address is pushed before entry and popped before the kretprobe runs, so the stack pointer differs by one
 * word. arm64 keeps the return address in a register. */
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
        u64 nested = NESTED_ROWS;                                                                                      \
        struct cpu_state *here = 0;                                                                                    \
                                                                                                                       \
        if (begin_call(NUMBER_##row, ctx, &nested, &here)) {                                                           \
            struct call call = {.arg = ARGS_##row(GET_SLOT, ctx), .number = NUMBER_##row, .direct = DIRECT_##row,      \
                                .nested = nested, .here = here};                                                       \
                                                                                                                       \
            call.ret = GET_SLOT(ctx, RETURN_##row);                                                                    \
            row##_returned(&call);                                                                                     \
            end_call(NUMBER_##row, nested, here);                                                                      \
        }                                                                                                              \
        return 0;                                                                                                      \
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
        call.number = NUMBER_##row, call.direct = DIRECT_##row, call.nested = 0, call.here = 0; /* constants */        \
        call.ret = PT_REGS_RC(ctx);                                                                                    \
        return row##_returned(&call);                                                                                  \
    }
