# SPDX-License-Identifier: Apache-2.0
"""Packets that the kernel frees like dropped ones although they had been delivered, mostly to the queue of a closed socket.

The kernel has one function for "freed, and not used" (kfree_skb), with one tracepoint behind it. It is called for packets on
their way through the stack, which is a drop, and for packets in a queue when the owner of the queue goes away. The function
that freed a packet shows where it was. Some functions empty only the queues of sockets, so no socket event is needed. Some
empty any queue, and then only an earlier socket event shows the owner. Everything that is not listed here is a drop, also in a
queue: of a neighbour (neigh_invalidate, neigh_destroy, __neigh_event_send), of an interface (qdisc_reset, kfree_skb_list), of a
CPU after its device has gone (flush_backlog, net_tx_action), of packets that wait for their fragments. Those had not been
delivered.

Files are those of the kernel. Queues are emptied with kfree_skb before 6.6, and since then with the reason QUEUE_PURGE
(commit 4025d3e73abd, "net: add skb_queue_purge_reason and __skb_queue_purge_reason").
"""

from __future__ import annotations

from tracer.model.hop import Drop

SOCKET, TUNNEL, ANY = "a socket", "the process behind a tunnel's device", ""

QUEUE_OWNERS: dict[str, str] = {
    # net/ipv4/udp.c: datagrams that wait to be read. The first name is used since commit d38afeec26ed ("tcp/udp: Call
    # inet6_destroy_sock() in IPv6 sk->sk_destruct()", 6.2 and stable), which 5.10 has too.
    "udp_destruct_common": SOCKET,
    "udp_destruct_sock": SOCKET,
    "udpv6_destruct_sock": SOCKET,
    # net/ipv4/af_inet.c: receive queue and error queue of every IP socket: UDP, raw, ping, what is left of TCP.
    "inet_sock_destruct": SOCKET,
    # net/core/stream.c: receive queue of a TCP connection that is destroyed.
    "sk_stream_kill_queues": SOCKET,
    # net/ipv4/tcp.c: receive queue of a connection that is disconnected, also before it was accepted
    # (inet_csk_listen_stop) or because it was reset.
    "tcp_disconnect": SOCKET,
    # net/core/skbuff.c: used only for the out-of-order queues of TCP (tcp_v4_destroy_sock, tcp_disconnect) and MPTCP. When
    # memory is short, segments of that queue are dropped elsewhere (tcp_prune_ofo_queue), with a reason of their own.
    "skb_rbtree_purge": SOCKET,
    # net/sctp/ulpevent.c: messages that were read, and unread messages of a socket that is closed (sctp_close).
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
    # net/core/skbuff.c: any queue, among them those of packet sockets (packet_release), netlink sockets and devices.
    "skb_queue_purge": ANY,
    "skb_queue_purge_reason": ANY,
}
"""Kernel functions that empty queues, and the receiver of the packets in them."""

RECEIVED_REASONS = frozenset({"TCP_RESET", "QUEUE_PURGE"})
"""Drop reasons of packets that a socket had received: a reset that it has acted on, or packets queued when it was closed."""


def receiver(drop: Drop) -> str:
    """The receiver of a packet that was freed after delivery; "" if it was dropped, or if that is not known."""
    who = QUEUE_OWNERS.get(drop.function)
    if who:
        return who
    return SOCKET if drop.after_socket and (who is ANY or drop.reason in RECEIVED_REASONS) else ""


def has_unknown_receiver(drop: Drop) -> bool:
    """Whether it is not known if the packet was delivered: it was in a queue of unknown owner."""
    return QUEUE_OWNERS.get(drop.function) is ANY and not drop.after_socket
