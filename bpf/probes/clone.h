/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Copies of a tracked packet (bridge flooding, TEE) are tracked as the same packet.
 *
 * Most copies are made for packet taps. They end there without an event, and their buffers are reused for other packets. So
 * the entry of a tap's copy is deleted when the copy arrives. Any other copy must be seen within COPY_TICKS jiffies: some
 * milliseconds, since the CPU may run another process in between. */

#define COPY_TICKS 8

/* arg: skb; returns the copy */
static __always_inline int clone_keep(struct call *c)
{
    u64 skb = c->arg[0];
    return find_tracked(skb) != 0;
}

static __always_inline int clone_returned(struct call *c)
{
    u64 skb = c->arg[0], copy = c->ret;
    struct tracked_skb *e = find_tracked(skb);
    struct observation *s = observation_of(c);
    struct tracked_skb f;

    if (!e || !s || !copy || e->dead)
        return 0;
    f = *e;
    f.flags |= FLAG_CLONE;
    f.netns = 0;
    f.stage = 0;
    f.hook = NO_HOOK;
    f.emitted.netns = 0;
    f.until = bpf_jiffies64() + COPY_TICKS;
    tracked_skbs.update(&copy, &f);
    track_recent(copy, s);
    return 0;
}

#define copy_keep clone_keep
#define copy_returned clone_returned
#define pcopy_keep clone_keep
#define pcopy_returned clone_returned
PROBE_RETURN(clone)
PROBE_RETURN(copy)
PROBE_RETURN(pcopy)

/* arg: skb */
static __always_inline int tap_entered(struct call *c)
{
    u64 skb = c->arg[0];
    struct tracked_skb *e = find_tracked(skb);

    if (e && e->flags & FLAG_CLONE)
        tracked_skbs.delete(&skb);
    return 0;
}
#define tap_ring_entered tap_entered
PROBE_ENTRY(tap)
PROBE_ENTRY(tap_ring)
