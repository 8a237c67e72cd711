# SPDX-License-Identifier: Apache-2.0
"""What the kernel frees as if it dropped it, although somebody had taken it: the queues of a socket that is closed, most of
all.

A kernel has one function for "freed, and not used" (kfree_skb), and one tracepoint behind it. It is called on the way through
the stack, which is a drop, and for what lay in a queue when the queue's owner went away. Where a packet lay is told by the
function that freed it: some functions empty the queues of sockets and nothing else, so they need no socket to have been seen;
some empty any queue, and then only what was seen before tells. What no row is about is a drop, also where it was in a queue:
of a neighbour (neigh_invalidate, neigh_destroy, __neigh_event_send), of an interface (qdisc_reset, kfree_skb_list), of a CPU
whose device has gone (flush_backlog, net_tx_action), of packets that wait for their fragments. Nobody had taken those.

Files are those of the kernel. Queues are emptied with kfree_skb before 6.6, and since then with the reason QUEUE_PURGE
(commit 4025d3e73abd, "net: add skb_queue_purge_reason and __skb_queue_purge_reason").
"""

from __future__ import annotations

from tracer.model.packet import Drop

SOCKET, TUNNEL, ANY = "a socket", "the process behind a tunnel's device", ""

EMPTIED: dict[str, str] = {
    # net/ipv4/udp.c: datagrams that wait to be read. The first is the name since commit d38afeec26ed ("tcp/udp: Call
    # inet6_destroy_sock() in IPv6 sk->sk_destruct()", 6.2 and stable), which 5.10 has too.
    "udp_destruct_common": SOCKET,
    "udp_destruct_sock": SOCKET,
    "udpv6_destruct_sock": SOCKET,
    # net/ipv4/af_inet.c: receive queue and error queue of every IP socket: UDP, raw, ping, what is left of TCP.
    "inet_sock_destruct": SOCKET,
    # net/core/stream.c: receive queue of a TCP connection that is destroyed.
    "sk_stream_kill_queues": SOCKET,
    # net/ipv4/tcp.c: receive queue of a connection that is made to forget itself: also one that nobody has accepted
    # (inet_csk_listen_stop), or that was reset.
    "tcp_disconnect": SOCKET,
    # net/core/skbuff.c: of all users only the out-of-order queues of TCP (tcp_v4_destroy_sock, tcp_disconnect) and MPTCP. Under
    # want of memory segments of that queue are dropped elsewhere (tcp_prune_ofo_queue), for a reason of their own.
    "skb_rbtree_purge": SOCKET,
    # net/sctp/ulpevent.c: after the message has been read; and what a socket had not read when it is closed (sctp_close).
    "sctp_ulpevent_free": SOCKET,
    "sctp_queue_purge_ulpevents": SOCKET,
    # drivers/net/tun.c, tap.c: packets that wait for the process that holds the device.
    "tun_ptr_free": TUNNEL,
    "tun_queue_purge": TUNNEL,
    "__tun_detach": TUNNEL,
    "tun_detach_all": TUNNEL,
    "tun_chr_close": TUNNEL,
    "__skb_array_destroy_skb": TUNNEL,
    "tap_sock_destruct": TUNNEL,
    # net/core/skbuff.c: any queue. A packet socket's (packet_release) and a netlink socket's are among them, and a device's.
    "skb_queue_purge": ANY,
    "skb_queue_purge_reason": ANY,
}
"""Functions that empty queues, and who had taken what was in them."""

ACTED_ON = frozenset({"TCP_RESET", "QUEUE_PURGE"})
"""Reasons with which a socket frees what it has taken: a reset that it has acted on, or what was queued when it was closed."""


def taken_by(drop: Drop) -> str:
    """Who had taken a packet that was freed; "" where it was dropped, or where that is not known."""
    who = EMPTIED.get(drop.function)
    if who:
        return who
    return SOCKET if drop.after_socket and (who is ANY or drop.reason in ACTED_ON) else ""


def undecided(drop: Drop) -> bool:
    """Whether it is not known if anybody had taken it: it lay in a queue, and whose is not known."""
    return EMPTIED.get(drop.function) is ANY and not drop.after_socket
