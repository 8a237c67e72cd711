/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Programs for match and target functions: one line for each program in acts.h, which tracer/kernel/xt_extensions.py generates.
 *
 * All matches share one program (kprobes: one for entry and one for return), and all targets share one. By fentry it is loaded
 * once for each function. */

#if RULE_STEPS
/* A field of par; a plain load, because the verifier knows the type of par. */
#define INFO(par) (u64)(*(void *volatile *)&((struct xt_action_param *)(par))->matchinfo)
#ifdef HAVE_xt_action_param_hotdrop
#define HOTDROP(par) (*(volatile u8 *)&((struct xt_action_param *)(par))->hotdrop)
#else
#define HOTDROP(par) 0
#endif
#define MATCH_FEXIT(program)                                                                                           \
    int program(u64 *ctx)                                                                                              \
    {                                                                                                                  \
        return match_returned(ctx[0], INFO(ctx[1]), ctx[2] & 255 ? STEP_TRUE : STEP_FALSE, HOTDROP(ctx[1]), 0);           \
    }
#define TARGET_FENTRY(program)                                                                                         \
    int program(u64 *ctx)                                                                                              \
    {                                                                                                                  \
        return target_called(ctx[0], INFO(ctx[1]));                                                                     \
    }
#define MATCH_KPROBE(program)                                                                                          \
    int program(struct pt_regs *ctx)                                                                                   \
    {                                                                                                                  \
        return match_returned(PT_REGS_PARM1(ctx), (u64)PEEK((struct xt_action_param *)PT_REGS_PARM2(ctx), matchinfo),     \
                           STEP_UNKNOWN, 0, PT_REGS_PARM2(ctx));                                                       \
    }
#define MATCH_KRETPROBE(program)                                                                                       \
    int program(struct pt_regs *ctx)                                                                                   \
    {                                                                                                                  \
        return match_answered(PT_REGS_RC(ctx));                                                                        \
    }
#define TARGET_KPROBE(program)                                                                                         \
    int program(struct pt_regs *ctx)                                                                                   \
    {                                                                                                                  \
        return target_called(PT_REGS_PARM1(ctx), (u64)PEEK((struct xt_action_param *)PT_REGS_PARM2(ctx), matchinfo));   \
    }

#include "acts.h"
#endif
