/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Packets that wait in a queue for a process (NFQUEUE): which queue, how long, what the answer was, and why a queue took none.
 *
 * nfqnl_enqueue_packet looks the queue up, __nfqnl_enqueue_packet puts the packet into it, and nfqnl_reinject takes it back with a
 * verdict. That is called where
 *
 *   - a process answers: nfqnl_recv_verdict, nfqnl_recv_verdict_batch;
 *   - a queue is emptied with NF_DROP, because its process ended or unbound it (instance_destroy_rcu; instance_destroy_work since
 *     kernel commit 936206e3f6ff, "netfilter: nfnetlink_queue: make hash table per queue"), an interface went down
 *     (nfqnl_rcv_dev_event), or functions of a hook were removed (nfqnl_nf_hook_drop);
 *   - a queue with fail-open takes no packet, and lets it pass: in nfqnl_enqueue_packet.
 *
 * All of these are called through pointers, so they are never inlined. Which one runs is noted by task; a queue that ends, by its
 * address, because instance_destroy_rcu runs in a softirq, on top of any task. */

/* The callers of nfqnl_reinject, except those for a queue that ends, by task: row of the probe table. */
BPF_TABLE("lru_hash", u64, u32, queue_callers, 256);
/* Queues that end, by address of the part by which the end is scheduled. */
BPF_TABLE("lru_hash", u64, u8, ended_queues, 64);
#ifdef HAVE_nfqnl_instance_rwork
#define ENDING_PART OFFSET_nfqnl_instance_rwork
#elif defined(HAVE_nfqnl_instance_rcu)
#define ENDING_PART OFFSET_nfqnl_instance_rcu
#else
#define ENDING_PART 0
#endif

struct queued_packet {
    u64 time;   /* ns, CLOCK_MONOTONIC */
    u64 packet; /* identity of the tracked packet */
    u64 task;   /* the task in which nfqnl_enqueue_packet runs; 0 = it has returned */
    u64 queue;  /* address of the queue; it can be read while nfqnl_enqueue_packet runs */
    u16 number; /* number of the queue */
};
/* Packets in a queue, by the address of the buffer, which the queue keeps. */
BPF_TABLE("lru_hash", u64, struct queued_packet, queued_packets, 4096);

#define ENOBUFS_ERROR 105
#define ENOSPC_ERROR 28

static __always_inline int note_queue_caller(u32 row)
{
    u64 task = bpf_get_current_task();

    queue_callers.update(&task, &row);
    return 0;
}

static __always_inline int queue_verdict_entered(struct call *c)
{
    return note_queue_caller(c->number);
}
#define queue_verdicts_entered queue_verdict_entered
#define queue_device_entered queue_verdict_entered
#define queue_unhooked_entered queue_verdict_entered
PROBE_ENTRY(queue_verdict)
PROBE_ENTRY(queue_verdicts)
PROBE_ENTRY(queue_device)
PROBE_ENTRY(queue_unhooked)

/* No other caller works on the queue any more, and nothing is put into it: all packets that come back are dropped here. arg: the
 * part of the queue by which its end was scheduled */
static __always_inline int queue_emptied_entered(struct call *c)
{
    u64 part = c->arg[0];
    u8 one = 1;

    ended_queues.update(&part, &one);
    return 0;
}
PROBE_ENTRY(queue_emptied)

/* arg: queue, entry */
static __always_inline int queued_entered(struct call *c)
{
#if defined(HAVE_nfqnl_instance_queue_num) && defined(HAVE_nf_queue_entry_skb)
    struct nfqnl_instance *queue = (void *)c->arg[0];
    struct nf_queue_entry *entry = (void *)c->arg[1];
    struct sk_buff *skb = READ(c, entry, skb);
    struct tracked_skb *e = is_still_tracked(c, skb, observation_of(c));
    struct queued_packet new = {};
    u64 key = (u64)skb, part = c->arg[0] + ENDING_PART;

    if (!e)
        return 0;
    ended_queues.delete(&part); /* a new queue at the address of an earlier one */
    new.time = bpf_ktime_get_ns();
    new.packet = e->packet;
    new.task = bpf_get_current_task();
    new.queue = c->arg[0];
    new.number = READ(c, queue, queue_num);
    queued_packets.update(&key, &new);
#endif
    return 0;
}
PROBE_ENTRY(queued)

/* arg: entry, number of the queue */
static __always_inline int queue_refused_keep(struct call *c)
{
    return 1;
}

/* Returns 0: the packet waits, or has been answered and freed; then `entry` may be freed, too. Else an error, and the packet is
 * valid. It has got an id (a number of the queue's own, from 1) only if there was room for it. */
static __always_inline int queue_refused_returned(struct call *c)
{
#if defined(HAVE_nfqnl_instance_queue_num) && defined(HAVE_nf_queue_entry_skb)
    struct nf_queue_entry *entry = (void *)c->arg[0];
    struct sk_buff *skb = READ(c, entry, skb);
    struct queued_packet *q;
    struct decision_detail *out;
    struct nfqnl_instance *queue;
    struct tracked_skb *e;
    int error = c->ret;
    u64 key = (u64)skb;

    q = queued_packets.lookup(&key);
    if (error >= 0) {
        if (q && q->task == bpf_get_current_task())
            q->task = 0;
        return 0;
    }
    e = is_still_tracked(c, skb, observation_of(c));
    if (!e)
        return 0;
    out = reserve_detail(e, DETAIL_QUEUE_REFUSED);
    if (!out)
        return 0;
    out->values[0] = -error;
    out->values[1] = (u16)c->arg[1];
    if (q && q->packet == e->packet) {
        queue = (void *)q->queue;
        out->values[2] = PEEK(queue, queue_total);
        out->values[3] = PEEK(queue, queue_maxlen);
        out->status = READ(c, entry, id) ? QUEUE_NOT_READ : error == -ENOBUFS_ERROR || error == -ENOSPC_ERROR ? QUEUE_FULL : 0;
    }
    submit_detail(out);
    if (q)
        queued_packets.delete(&key);
#endif
    return 0;
}
PROBE_RETURN(queue_refused)

/* Which call this is: by the packet, and by what was noted for the task. A call that empties a queue is only told from an answer
 * if all of those are seen. */
static __always_inline u8 queue_answer_by(struct queued_packet *q, u32 id, u64 task, u8 verdict)
{
    u64 part = q->queue + ENDING_PART;
    u32 *row;

    if (q->task == task && verdict == NF_ACCEPT)
        return id ? ANSWER_NOT_READ : ANSWER_FULL;
    if (ended_queues.lookup(&part))
        return ANSWER_EMPTIED;
    row = queue_callers.lookup(&task);
    if (!row || (verdict == NF_DROP && !QUEUE_CALLERS_SEEN))
        return ANSWER_UNKNOWN;
    if (*row == ROW_queue_verdict || *row == ROW_queue_verdicts)
        return ANSWER_OF_PROCESS;
    return verdict != NF_DROP ? ANSWER_UNKNOWN : *row == ROW_queue_device ? ANSWER_DEVICE : ANSWER_UNHOOKED;
}

/* arg: entry, verdict */
static __always_inline int queue_answer_entered(struct call *c)
{
#if defined(HAVE_nf_queue_entry_skb) && defined(HAVE_nf_queue_entry_state_hook)
    struct nf_queue_entry *entry = (void *)c->arg[0];
    u64 skb = (u64)READ(c, entry, skb), task = bpf_get_current_task(), packet, time;
    struct queued_packet *q = queued_packets.lookup(&skb);
    struct tracked_skb *e = find_tracked(skb);
    struct decision_detail *out;
    u8 by, hook = READ(c, entry, state_hook), verdict = c->arg[1] & 255;
    u16 number;

    if (!q)
        return 0;
    by = queue_answer_by(q, READ(c, entry, id), task, verdict);
    packet = q->packet;
    time = q->time;
    number = q->number;
    queued_packets.delete(&skb);
    if (!e || e->dead || e->packet != packet)
        return 0;
    if (verdict != NF_DROP && hook == e->hook) { /* the functions of the hook that follow are called now */
        e->back_in = e->stage == stage_of(hook, 0) ? hook + 1 : 0;
        e->stage = stage_of(hook, 0);
    }
    if (verdict != NF_DROP && drops_only_excludes(e, 0))
        return 0;
    out = reserve_detail(e, DETAIL_QUEUE_ANSWER);
    if (!out)
        return 0;
    out->object = out->time - time;
    out->values[0] = c->arg[1];
    out->values[1] = number;
    out->status = by;
    if (by == ANSWER_OF_PROCESS) {
        out->values[2] = bpf_get_current_pid_tgid() >> 32;
        out->option_bytes = TASK_NAME;
        bpf_get_current_comm(out->options, TASK_NAME);
    }
    submit_detail(out);
#endif
    return 0;
}
PROBE_ENTRY(queue_answer)
