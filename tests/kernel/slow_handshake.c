/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Makes the end of a handshake slow: the connection is held up after its listener was found, before others can find it. */

#define HELD_UP_NS 10000000ULL
#define ROUNDS 4000 /* the verifier follows up to 8192 branches that were not taken */
#define LOOKS 16

int hold_up(void *ctx)
{
    u64 until = bpf_ktime_get_ns() + HELD_UP_NS, now = 0;

    for (int round = 0; round < ROUNDS && now < until; round++)
#pragma unroll
        for (int look = 0; look < LOOKS; look++)
            now = bpf_ktime_get_ns();
    return 0;
}
