/* Copies of a followed packet (bridge flooding, TEE, packet taps) are followed too, as the same packet. */

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
    struct follow f;

    if (!e || !copy || e->dead)
        return 0;
    f = *e;
    f.flags |= FLAG_CLONE;
    f.netns = 0;
    f.stage = 0;
    followed.update(&copy, &f);
    return 0;
}

#define copy_keep clone_keep
#define copy_returned clone_returned
#define pcopy_keep clone_keep
#define pcopy_returned clone_returned
PROBE_RETURN(clone)
PROBE_RETURN(copy)
PROBE_RETURN(pcopy)
