/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The payload record: bytes of a packet from the IP header on. It is written only with --snaplen, before the packet's first
 * event.
 *
 * It has the size of a whole struct event and its joints, so it fits the slots of the same ring. The fields that both have are
 * at the same offsets: time, packet, netns, hop, kind, flags. The bytes of a packet are any number of these records, each from
 * one piece of the socket buffer. They have no hop number of their own: a lost one does not make the packet's path incomplete.
 * tracer/events/payload.py parses these lines. */

#define BYTES_1 48 /* bytes of the packet in the first slot, and so on */
#define BYTES_2 96
#define BYTES_3 96
#define RAW_IN_RECORD (BYTES_1 + BYTES_2 + BYTES_3)

struct payload_record {
    u64 time;            /* ns, CLOCK_MONOTONIC */
    u64 packet;          /* identity of the tracked packet */
    u64 object;          /* zero */
    u32 netns;           /* inode of the network namespace */
    u32 first;           /* offset of these bytes in the packet, from the IP header on */
    u32 count;           /* number of bytes in this record */
    u32 spare[2];        /* zero */
    u16 hop;             /* running number of the event that follows */
    u8 kind;             /* EVENT_RAW */
    u8 flags;            /* enum event_flag, or-ed */
    u8 bytes_1[BYTES_1]; /* the first bytes */
    u64 joint1;          /* zero: here begins the second slot */
    u8 bytes_2[BYTES_2]; /* more bytes */
    u64 joint2;          /* zero: here begins the third slot */
    u8 bytes_3[BYTES_3]; /* more bytes */
};
_Static_assert(sizeof(struct payload_record) == sizeof(struct event), "as whole as an event");
_Static_assert(__builtin_offsetof(struct payload_record, joint1) == SHORT_EVENT, "as short as an event");
_Static_assert(__builtin_offsetof(struct payload_record, joint2) == __builtin_offsetof(struct event, joint2), "same slots");
_Static_assert(__builtin_offsetof(struct payload_record, hop) == __builtin_offsetof(struct event, hop), "hop");
