/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Writes a decision detail of a packet that is not shed: reserve, let the probe fill it, submit. */

static __always_inline struct decision_detail *reserve_detail(struct tracked_skb *e, u8 what)
{
    struct decision_detail *out;
    u16 hop = e->hops++;

    if (e->shed)
        return 0;
    out = events.ringbuf_reserve(sizeof(struct decision_detail));
    if (!out) {
        count_lost(EVENT_CLUE);
        return 0;
    }
    count_written(sizeof(*out));
    __builtin_memset(out, 0, sizeof(*out));
    out->time = bpf_ktime_get_ns();
    out->packet = e->packet;
    out->netns = e->netns;
    out->hop = hop;
    out->kind = EVENT_CLUE;
    out->flags = e->flags | FLAG_NO_HEADER;
    out->what = what;
    return out;
}

static __always_inline void submit_detail(struct decision_detail *out)
{
    events.ringbuf_submit(out, BPF_RB_NO_WAKEUP);
}
