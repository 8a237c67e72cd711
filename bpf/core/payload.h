/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* With --snaplen: writes the first SNAPLEN bytes of a packet from its IP header on, as they are at its first event.
 *
 * Without --snaplen this is not compiled. The bytes are in the linear data of the skb and then in its first page: for packets
 * that this machine sends by TCP, all but the headers are in pages. Further pages are not read. */

#ifdef SNAPLEN

#define PAGE_BYTES 4096

struct piece {
    u64 at;    /* address */
    u64 bytes; /* number of readable bytes */
};

/* The first page after the linear data; 0 bytes if there is none, or its address is not known. x86 maps all memory in one
 * piece and has its pages in one array; two variables have the addresses of both. */
static __always_inline struct piece first_page(struct call *c, struct sk_buff *skb)
{
    struct piece none = {};
#if defined(HAVE_skb_shared_info_frags) && defined(HAVE_sk_buff_end) && defined(SIZEOF_page) &&                         \
    defined(ADDRESS_vmemmap_base) && defined(ADDRESS_page_offset_base)
    struct {
        u64 page; /* struct page; lowest bit set = memory of a device, which is not read */
        u32 bytes, offset;
    } frag = {};
    u64 shared = (u64)READ(c, skb, head), pages = 0, memory = 0;
    u8 count = 0;

    shared += READ(c, skb, end);
    bpf_probe_read_kernel(&count, sizeof(count), (void *)(shared + OFFSET_skb_shared_info_nr_frags));
    bpf_probe_read_kernel(&frag, sizeof(frag), (void *)(shared + OFFSET_skb_shared_info_frags));
    bpf_probe_read_kernel(&pages, sizeof(pages), (void *)ADDRESS_vmemmap_base);
    bpf_probe_read_kernel(&memory, sizeof(memory), (void *)ADDRESS_page_offset_base);
    if (count && !(frag.page & 1) && frag.page >= pages && pages && memory)
        return (struct piece){memory + (frag.page - pages) / SIZEOF_page * PAGE_BYTES + frag.offset, frag.bytes};
#endif
    return none;
}

/* The smaller of n and `most`, an immediate. The verifier accepts a bound only for the register that was compared, and the
 * compiler may compare another register, or 32 bits of it. So this comparison is written in assembly. */
#define AT_MOST(n, most)                                                                                                 \
    ({                                                                                                                   \
        u64 _n = (n);                                                                                                    \
        asm volatile("if %0 <= %1 goto +1\n\t%0 = %1" : "+r"(_n) : "i"(most));                                           \
        _n;                                                                                                              \
    })

/* bpf_probe_read_kernel with a size of 64 bits, as in the kernel: a size that is widened from 32 bits loses its bound. */
static int (*read_bytes)(void *to, u64 bytes, const void *from) = (void *)BPF_FUNC_probe_read_kernel;

/* Writes one record with `count` bytes at address `from`; `first` is their offset in the packet. */
static __always_inline void write_payload(struct tracked_skb *e, u64 first, u64 from, u64 count)
{
    struct payload_record *out = events.ringbuf_reserve(sizeof(struct payload_record));

    if (!out) {
        count_lost(EVENT_RAW);
        return;
    }
    count_written(sizeof(*out));
    __builtin_memset(out, 0, sizeof(*out));
    out->time = bpf_ktime_get_ns();
    out->packet = e->packet;
    out->netns = e->netns;
    out->hop = e->hops;
    out->kind = EVENT_RAW;
    out->flags = e->flags;
    out->first = first;
    out->count = count;
    read_bytes(out->bytes_1, AT_MOST(count, BYTES_1), (void *)from);
    if (count > BYTES_1)
        read_bytes(out->bytes_2, AT_MOST(count - BYTES_1, BYTES_2), (void *)(from + BYTES_1));
    if (count > BYTES_1 + BYTES_2)
        read_bytes(out->bytes_3, AT_MOST(count - BYTES_1 - BYTES_2, BYTES_3), (void *)(from + BYTES_1 + BYTES_2));
    events.ringbuf_submit(out, BPF_RB_NO_WAKEUP);
}

/* Writes the bytes of the packet in observation *s, piece by piece. Its header has just been parsed. */
static __always_inline void write_bytes(struct call *c, struct tracked_skb *e, struct sk_buff *skb, struct observation *s)
{
    struct piece own = {(u64)READ(c, skb, head) + READ(c, skb, network_header)}, page;
    u64 at = 0, wanted;

    own.bytes = (u32)READ(c, skb, tail) - READ(c, skb, network_header);
    page = first_page(c, skb);
    wanted = own.bytes + page.bytes;
    if (s->packet.length && wanted > s->packet.length)
        wanted = s->packet.length; /* padding of the frame may follow */
    if (wanted > SNAPLEN)
        wanted = SNAPLEN;
#pragma clang loop unroll(disable)
    for (int i = 0; i < SNAPLEN / RAW_IN_RECORD + 2; i++) {
        u64 from = at < own.bytes ? own.at + at : page.at + at - own.bytes;
        u64 count = at < own.bytes ? own.bytes - at : wanted - at;
        if (at >= wanted)
            break;
        if (count > wanted - at)
            count = wanted - at;
        if (count > RAW_IN_RECORD)
            count = RAW_IN_RECORD;
        write_payload(e, at, from, count);
        at += count;
    }
}
#endif
