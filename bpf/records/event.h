/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The event record, which every probe writes.
 *
 * This file is its only description: the C below is compiled into the probes, and tracer/events/record.py parses the same
 * lines to decode the ring buffer as one array and to name the fields in text, JSON and captures. So the form is plain:
 * fixed-width types, one field a line, each with a comment on its content. The order of the fields avoids padding;
 * tracer/events/cstruct.py rejects a record with padding.
 *
 * Most events repeat the header, connection and interface names of the packet's previous event. They are written short: only
 * the fields before `joint1`. In the ring a short event with its 8 bytes of ring header is one slot, a whole event is three
 * slots. The joints are always zero and lie where slots two and three begin. So the reader finds the beginning of each event
 * without parsing the events before it (tracer/kernel/ring_buffer.py).
 *
 * Addresses are 16 bytes; an IPv4 address is written as IPv4-mapped IPv6 (::ffff:a.b.c.d). Ports are in host order. */

enum event_kind {
    EVENT_HOOK = 1,     /* a netfilter hook has run: nf_hook_slow returned */
    EVENT_TABLE = 2,    /* an iptables table has run: ipt_do_table returned */
    EVENT_CHAIN = 3,    /* an nftables base chain has run: nft_do_chain returned */
    EVENT_NAT = 4,      /* the packet is about to be rewritten: nf_nat_manip_pkt */
    EVENT_NAT_HOOK = 5, /* NAT was called (verbose only): nf_nat_ipv4_fn or nf_nat_inet_fn returned */
    EVENT_SOCKET = 6,   /* the packet reached a socket: sk_filter_trim_cap */
    EVENT_SYN = 7,      /* a listener handled a SYN: tcp_conn_request returned */
    EVENT_ACCEPT = 8,   /* the last ACK of a handshake made a socket, or not: tcp_v4_syn_recv_sock returned */
    EVENT_REQUEST = 9,  /* a segment arrived for a half-open connection: tcp_check_req returned */
    EVENT_DROP = 10,    /* the packet was freed as dropped: skb:kfree_skb */
    EVENT_IPVS = 11,    /* IPVS sent the packet to a real server or to the client, or refused it; see probes/ipvs.h */
    EVENT_NFT_RULE = 12, /* an nftables rule acted: struct nft_rule_trace in records/nft_trace.h */
    EVENT_STEPS = 13,   /* matches and targets called in one run of an iptables table: struct table_trace, see table_trace.h */
    EVENT_RULESET = 14, /* a legacy table was looked up or replaced: struct table_generation in records/table_trace.h */
    EVENT_RAW = 15,     /* bytes of the packet, with --snaplen: struct payload_record in records/payload.h */
    EVENT_REDIRECT = 16, /* an eBPF program redirected the packet, or a copy of it: skb_do_redirect and others */
    EVENT_REWRITE = 17, /* eBPF programs at an interface have rewritten the header: see probes/ebpf_programs.h */
    EVENT_CLUE = 20,    /* what the kernel knew when it decided: struct decision_detail in records/decision_detail.h */
};

enum event_flag {
    FLAG_CLONE = 1,    /* this skb is a copy of the tracked one */
    FLAG_FRAGMENT = 2, /* a fragment, not the first one: it has no ports */
    FLAG_MASQ = 4,     /* the connection's source was chosen by MASQUERADE */
    FLAG_HAS_CT = 8,   /* the packet had a conntrack entry */
    FLAG_NO_HEADER = 16, /* header and connection are not filled: the packet was freed, or its header is already known */
    FLAG_AT_SOCKET = 64, /* a socket had received the packet before */
    FLAG_REJECT = 32,  /* TABLE, CHAIN: an ICMP error or a TCP reset answered the packet; see reason */
    FLAG_SAME = 128,   /* a short event: from `protocol` on, the fields are those of the packet's last whole event. A table run
                          does not parse the header again; the hook around it does */
};

enum program_place {
    PLACE_UNKNOWN = 0,
    PLACE_TC_INGRESS = 1, /* REWRITE: also generic XDP, which runs before */
    PLACE_TC_EGRESS = 2,
    PLACE_XDP = 3, /* generic XDP */
};

enum redirect_way {
    REDIRECT_INGRESS = 1,   /* as received by the target */
    REDIRECT_NEIGHBOUR = 2, /* by the target, to a neighbour that the kernel finds: bpf_redirect_neigh */
    REDIRECT_PEER = 4,      /* as received by the other end of the target: bpf_redirect_peer */
    REDIRECT_COPY = 8,      /* a copy: bpf_clone_redirect */
};

enum ipvs_act {
    IPVS_CHOSEN = 1,    /* sent to the real server that the scheduler chose for this packet */
    IPVS_KNOWN = 2,     /* sent to the real server that was chosen for an earlier packet of the connection */
    IPVS_REPLY = 3,     /* the real server's answer: the source becomes the virtual server's address again */
    IPVS_NO_SERVER = 4, /* refused: no real server accepts connections, or there is none */
    IPVS_DROPPED = 5,   /* dropped; IPVS gives no reason */
};

#define IPVS_PERSISTENT 8 /* in event.ct_info: clients keep their real server (session affinity) */

struct event {
    u64 time;          /* ns, CLOCK_MONOTONIC */
    u64 packet;        /* identity of the tracked packet: time when first seen, ns << 8 | CPU */
    u64 object;        /* DROP: code address; SOCKET, SYN, ACCEPT: socket inode; TABLE: the rule blob; CHAIN: the chain;
                          IPVS: the IPVS connection; its addresses are in the fields of conntrack; REDIRECT: id of the program,
                          0 = not known; REWRITE has the header before in src to dport, the new one in orig_* */
    u32 netns;         /* inode of the network namespace */
    u32 in_ifindex;    /* interface it came in by, 0 = none */
    u32 out_ifindex;   /* interface it leaves by, 0 = none */
    u32 mark;          /* skb->mark */
    u32 reason;        /* DROP: skb_drop_reason; with FLAG_REJECT: ICMP code, or 256 for a TCP reset; SYN: 1 = answered with a
                          SYN cookie */
    u16 hop;           /* running number of this event in its packet; events that could not be written count, too */
    u8 kind;           /* enum event_kind */
    u8 flags;          /* enum event_flag, or-ed */
    u8 hook;           /* 0 PREROUTING 1 INPUT 2 FORWARD 3 OUTPUT 4 POSTROUTING 255 none; of pf 5: 0 ingress 1 egress; 5 of any
                          other: bridge's BROUTING, inet's ingress */
    u8 pf;             /* protocol family of the hook: 2 ip, 7 bridge, 10 ip6, 1 inet, 5 netdev */
    u8 verdict;        /* HOOK, TABLE, CHAIN: NF_* verdict, 255 = none yet, a rule may steal the packet; SYN, ACCEPT, REQUEST:
                          1 accepted, 0 dropped, 255 unknown */
    u8 ct_info;        /* enum ip_conntrack_info; IPVS: how the connection is forwarded, IP_VS_CONN_F_* */
    u8 manip;          /* NAT, IPVS: 0 source 1 destination, +2 in the reply direction; CHAIN: 1 the table's name is cut,
                          +2 the chain's name is cut; TABLE: TABLE_* bits of the connection when the table returned;
                          DROP: DROP_*, or-ed; REDIRECT: enum redirect_way, or-ed */
    u8 state;          /* SOCKET: TCP state of the socket; TABLE: STEPS_* bits, see records/table_trace.h; CHAIN: family of the
                          table, 1 inet 2 ip 10 ip6; IPVS: enum ipvs_act; REDIRECT, REWRITE: enum program_place */
    char table[32];    /* TABLE, CHAIN: table name; IPVS: name of the scheduler; DROP: first 8 bytes: id of the socket's cgroup,
                          0 = not known */
    u8 protocol;       /* 6 TCP, 17 UDP, 1 ICMP, 58 ICMPv6, 132 SCTP ... */
    u8 tcp_flags;      /* FIN 1 SYN 2 RST 4 PSH 8 ACK 16 */
    u16 ident;         /* IPv4 identification */
    u16 zone;          /* conntrack zone */
    u32 seq;           /* TCP sequence number */
    u64 joint1;        /* zero: here begins the second slot */
    u8 src[16];        /* source address */
    u8 dst[16];        /* destination address */
    u8 orig_src[16];   /* conntrack, original direction */
    u8 orig_dst[16];   /* conntrack, original direction */
    u8 reply_src[16];  /* conntrack, reply direction */
    u8 reply_dst[16];  /* conntrack, reply direction */
    u64 joint2;        /* zero: here begins the third slot */
    u32 length;        /* bytes from the IP header on */
    u32 ack;           /* TCP acknowledgement number */
    u32 accept_len;    /* SOCKET, SYN, ACCEPT: length of the accept queue, connections; CHAIN: lower half of its run;
                          REDIRECT: number of the target interface, 0 = not known; REWRITE: interface at which the packet
                          was then, if it is another one */
    u32 accept_max;    /* SOCKET, SYN, ACCEPT: the listener's backlog; CHAIN: upper half of its run */
    u32 syn_len;       /* SOCKET, SYN, ACCEPT: half-open connections of the listener */
    u16 sport;         /* source port, or ICMP id */
    u16 dport;         /* destination port, or ICMP type << 8 | code */
    u16 orig_sport;    /* conntrack, original direction */
    u16 orig_dport;    /* conntrack, original direction */
    u16 reply_sport;   /* conntrack, reply direction */
    u16 reply_dport;   /* conntrack, reply direction */
    char in_name[16];  /* name of in_ifindex */
    char out_name[16]; /* name of out_ifindex */
    char chain[32];    /* CHAIN: base chain name; REDIRECT, REWRITE: name of the interface in accept_len */
};

#define SHORT_EVENT 96 /* bytes before joint1 */
#define NO_VERDICT 255
#define TABLE_SNAT 1      /* in manip: the connection's source is translated (IPS_SRC_NAT) */
#define TABLE_DNAT 2      /* in manip: the connection's destination is translated (IPS_DST_NAT) */
#define TABLE_CT 4        /* in manip: the packet has a connection */
#define TABLE_CT_KNOWN 8  /* in manip: the other bits are valid */
#define TABLE_STATUS 4    /* in manip: the connection's status << 4: 1 expected, 2 seen reply, 4 assured, 8 confirmed */
#define DROP_FILTERED 1   /* in manip: the packet reached a socket that has a filter of its own */
#define DROP_LOOKUP 2     /* in manip: a program of sk_lookup has refused the packet */
#define NO_ICMP_TYPE 65535 /* in dport: an ICMP packet of less than two bytes, which has neither type nor code */
