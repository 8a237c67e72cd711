/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Copies of a followed packet (bridge flooding, TEE) are followed too, as the same packet.
 *
 * Most copies are made for packet taps, though, and end there without a word, their buffers free for the next packet: so a
 * tap's copy is forgotten as it arrives, and any other must show up somewhere at once: within some milliseconds, since the
 * CPU may be taken away in between. */

#define COPY_TICKS 8

/* arg: skb; returns the copy */
static __always_inline int clone_keep(struct call *c)
{
    u64 skb = c->arg[0];
    return already_followed(skb) != 0;
}

static __always_inline int clone_returned(struct call *c)
{
    u64 skb = c->arg[0], copy = c->ret;
    struct follow *e = already_followed(skb);
    struct sight *s = sight_of(c);
    struct follow f;

    if (!e || !s || !copy || e->dead)
        return 0;
    f = *e;
    f.flags |= FLAG_CLONE;
    f.netns = 0;
    f.stage = 0;
    f.told.netns = 0;
    f.until = bpf_jiffies64() + COPY_TICKS;
    followed.update(&copy, &f);
    followed_now(copy, s);
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
    struct follow *e = already_followed(skb);

    if (e && e->flags & FLAG_CLONE)
        followed.delete(&skb);
    return 0;
}
#define tap_ring_entered tap_entered
PROBE_ENTRY(tap)
PROBE_ENTRY(tap_ring)
