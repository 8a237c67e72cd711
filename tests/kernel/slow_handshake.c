/* Makes the end of a handshake slow: the connection is held up after its listener was found, before others can find it. */

#define HELD_UP_NS 3000000ULL
#define LOOKS 4000 /* the verifier follows up to 8192 branches that were not taken */

int hold_up(void *ctx)
{
    u64 until = bpf_ktime_get_ns() + HELD_UP_NS;

    for (int i = 0; i < LOOKS && bpf_ktime_get_ns() < until; i++)
        ;
    return 0;
}
