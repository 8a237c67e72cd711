/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* REJECT, of iptables and nftables alike: nf_send_unreach answers with an ICMP error, nf_send_reset with a TCP reset.
 *
 * The rule that sends the answer also drops the packet, in the same run of its table or chain. So these probes only store the
 * answer for the event that is written when the run returns. */

#define REJECT_WITH_RESET 256

/* An answer of REJECT. Without BTF the packet may be either of two arguments; no other argument has a packet's address. */
struct rejection {
    u64 skb, either; /* the packet; the other argument that may be the packet, 0 = none */
    u32 with; /* ICMP code, or REJECT_WITH_RESET */
};

/* By CPU: a table may return on another one than it ran on (probes/iptables_steps.h). */
BPF_ARRAY(rejections, struct rejection, CPUS);

static __always_inline int save_rejection(u64 skb, u64 either, u32 with)
{
    int cpu = bpf_get_smp_processor_id();
    struct rejection *r = rejections.lookup(&cpu);

    if (r) {
        r->skb = skb;
        r->either = either;
        r->with = with;
    }
    return 0;
}

/* Writes the answer into the event of a table or chain that ran on that CPU and dropped skb. */
static __always_inline void write_rejection(struct event *out, u64 skb, int cpu)
{
    struct rejection *r = rejections.lookup(&cpu);

    if (!r || (r->skb != skb && r->either != skb))
        return;
    out->flags |= FLAG_REJECT;
    out->reason = r->with;
    r->skb = r->either = 0;
}

/* arg: skb, ICMP code */
static __always_inline int unreach4_entered(struct call *c)
{
    return save_rejection(c->arg[0], 0, c->arg[1] & 255);
}
#define unreach6_entered unreach4_entered

/* arg: skb, the other argument that may be the skb */
static __always_inline int reset4_entered(struct call *c)
{
    return save_rejection(c->arg[0], c->arg[1], REJECT_WITH_RESET);
}
#define reset6_entered reset4_entered

PROBE_ENTRY(unreach4)
PROBE_ENTRY(unreach6)
PROBE_ENTRY(reset4)
PROBE_ENTRY(reset6)
