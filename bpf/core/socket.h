/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What is read of a socket. */

#define TCP_SYN_SENT 2
#define TCP_TIME_WAIT 6
#define TCP_LISTEN 10
#define TCP_NEW_SYN_RECV 12

/* The inode number of a socket, as in /proc/PID/fd: socket:[N]; 0 = no process has accepted or opened the socket. */
static __always_inline u64 socket_inode(struct call *c, struct sock *sk)
{
    struct socket *socket = READ(c, sk, sk_socket);
    struct file *file = socket ? READ(c, socket, file) : 0;
    struct inode *inode = file ? READ(c, file, f_inode) : 0;
    return inode ? READ(c, inode, i_ino) : 0;
}

/* The id of the cgroup (of version 2) of a socket, for its programs; 0 = not known. A half-open connection has the
 * listener's; one in TIME_WAIT has none. */
static __always_inline u64 socket_cgroup(struct call *c, struct sock *sk)
{
#if defined(HAVE_sock_sk_cgrp_data_cgroup) && defined(HAVE_cgroup_kn) && defined(HAVE_kernfs_node_id)
    u8 state = READ(c, sk, __sk_common_skc_state);
    struct cgroup *cgroup;
    struct kernfs_node *node;

    if (state == TCP_TIME_WAIT)
        return 0;
    if (state == TCP_NEW_SYN_RECV) {
#ifdef HAVE_sock___sk_common_skc_listener
        /* The field is one of a union, so for the verifier it is a number and nothing can be loaded through it. */
        sk = READ(c, sk, __sk_common_skc_listener);
        cgroup = sk ? PEEK(sk, sk_cgrp_data_cgroup) : 0;
        node = cgroup ? PEEK(cgroup, kn) : 0;
        return node ? PEEK(node, id) : 0;
#else
        return 0;
#endif
    }
    cgroup = READ(c, sk, sk_cgrp_data_cgroup);
    node = cgroup ? READ(c, cgroup, kn) : 0;
    return node ? READ(c, node, id) : 0;
#else
    return 0;
#endif
}

#define AF_INET 2
#define AF_INET6 10

static __always_inline int is_ip_socket(struct call *c, struct sock *sk)
{
    u16 family = READ(c, sk, __sk_common_skc_family);
    return family == AF_INET || family == AF_INET6;
}
