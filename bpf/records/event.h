/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The one record that every probe writes.
 *
 * This file is the only description of it: the C below is compiled into the probes, and tracer/events/record.py reads the same
 * lines to decode the ring buffer as one array and to name the fields in text, JSON and captures. So it keeps to a plain
 * form: fixed-width types, one field a line, each with a comment that says what it holds. Fields are placed so that the
 * compiler adds no padding; record.py refuses a record that would have any.
 *
 * Most events repeat what the packet's last one said of header, connection and interface names. Those are written short:
 * only the fields before `joint1`. In the ring a short event with its 8 bytes of ring header is one slot, a whole one is
 * three, and the joints, which stay zero, lie where slots two and three begin: that tells where events begin without walking
 * from one to the next (tracer/kernel/ring_buffer.py).
 *
 * Addresses are 16 bytes; an IPv4 address is written as IPv4-mapped IPv6 (::ffff:a.b.c.d). Ports are in host order. */

enum event_kind {
    EVENT_HOOK = 1,     /* a netfilter hook has run: nf_hook_slow returned */
    EVENT_TABLE = 2,    /* an iptables table has run: ipt_do_table returned */
    EVENT_CHAIN = 3,    /* an nftables base chain has run: nft_do_chain returned */
    EVENT_NAT = 4,      /* the packet is about to be rewritten: nf_nat_manip_pkt */
    EVENT_NAT_HOOK = 5, /* NAT was consulted (verbose only): nf_nat_ipv4_fn or nf_nat_inet_fn returned */
    EVENT_SOCKET = 6,   /* the packet reached a socket: sk_filter_trim_cap */
    EVENT_SYN = 7,      /* a SYN met its listener: tcp_conn_request returned */
    EVENT_ACCEPT = 8,   /* the handshake's last ACK made a socket, or not: tcp_v4_syn_recv_sock returned */
    EVENT_REQUEST = 9,  /* a segment met a half-open connection: tcp_check_req returned */
    EVENT_DROP = 10,    /* the packet was freed as dropped: skb:kfree_skb */
    EVENT_IPVS = 11,    /* IPVS sent the packet to a real server, or back, or refused it: ip_vs_nat_xmit and others, see ipvs.h */
    EVENT_NFT_RULE = 12, /* an nftables rule acted: struct nft_rule_trace in records/nft_trace.h */
    EVENT_STEPS = 13,   /* what one run of an iptables table asked: struct table_trace in records/table_trace.h */
    EVENT_RULESET = 14, /* a legacy table was looked up or replaced: struct table_generation in records/table_trace.h */
    EVENT_RAW = 15,     /* the packet's own bytes, with --snaplen: struct payload_record in records/payload.h */
    EVENT_CLUE = 20,    /* what the kernel knew when it decided: struct decision_detail in records/decision_detail.h */
};

enum event_flag {
    FLAG_CLONE = 1,    /* this skb is a copy of the followed one */
    FLAG_FRAGMENT = 2, /* not the first fragment: there are no ports in it */
    FLAG_MASQ = 4,     /* the connection's source was chosen by MASQUERADE */
    FLAG_HAS_CT = 8,   /* the packet had a conntrack entry */
    FLAG_NO_HEADER = 16, /* the packet was gone, or known well enough: header and connection are not filled */
    FLAG_AT_SOCKET = 64, /* a socket had taken the packet before */
    FLAG_REJECT = 32,  /* TABLE, CHAIN: an ICMP error or a TCP reset answered the packet; see reason */
    FLAG_SAME = 128,   /* a short event: from `protocol` on, all is as in the packet's last whole event. A table run did not
                          look at the header again, the hook around it does */
};

enum ipvs_act {
    IPVS_CHOSEN = 1,    /* to the real server that the scheduler chose for this very packet */
    IPVS_KNOWN = 2,     /* to the one that was chosen for an earlier packet of the connection */
    IPVS_REPLY = 3,     /* the real server's answer: the virtual server's address is put back */
    IPVS_NO_SERVER = 4, /* refused: no real server takes connections, or there is none */
    IPVS_DROPPED = 5,   /* dropped, for no reason that IPVS gives */
};

#define IPVS_PERSISTENT 8 /* in event.ct_info: clients keep their real server (session affinity) */

struct event {
    u64 time;          /* ns, CLOCK_MONOTONIC */
    u64 packet;        /* the followed packet: first seen, ns << 8 | CPU */
    u64 object;        /* DROP: code address; SOCKET, SYN, ACCEPT: socket inode; TABLE: the rule blob; CHAIN: the chain;
                          IPVS: its connection, whose addresses stand in those of conntrack */
    u32 netns;         /* inode of the network namespace */
    u32 in_ifindex;    /* interface it came in by, 0 = none */
    u32 out_ifindex;   /* interface it leaves by, 0 = none */
    u32 mark;          /* skb->mark */
    u32 reason;        /* DROP: skb_drop_reason; with FLAG_REJECT: ICMP code, or 256 for a TCP reset; SYN: 1 = answered with a
                          SYN cookie */
    u16 hop;           /* running number of this event in its packet, counted also when it could not be written */
    u8 kind;           /* enum event_kind */
    u8 flags;          /* enum event_flag, or-ed */
    u8 hook;           /* 0 PREROUTING 1 INPUT 2 FORWARD 3 OUTPUT 4 POSTROUTING 255 none; of pf 5: 0 ingress 1 egress; 5 of any
                          other: bridge's BROUTING, inet's ingress */
    u8 pf;             /* protocol family of the hook: 2 ip, 7 bridge, 10 ip6, 1 inet, 5 netdev */
    u8 verdict;        /* HOOK, TABLE, CHAIN: NF_* verdict, 255 = none yet: a rule may be taking the packet over; SYN, ACCEPT,
                          REQUEST: 1 accepted, 0 dropped, 255 unknown */
    u8 ct_info;        /* enum ip_conntrack_info; IPVS: how the connection is forwarded, IP_VS_CONN_F_* */
    u8 manip;          /* NAT, IPVS: 0 source 1 destination, +2 in the reply direction; CHAIN: 1 the table's name is longer than
                          told here, +2 the chain's is */
    u8 state;          /* SOCKET: TCP state of the socket; TABLE: what is known of its rules, see records/table_trace.h;
                          CHAIN: family of the table, 1 inet 2 ip 10 ip6; IPVS: enum ipvs_act */
    char table[32];    /* TABLE, CHAIN: table name; IPVS: the scheduler's */
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
    u32 accept_len;    /* SOCKET, SYN, ACCEPT: connections waiting in the accept queue; CHAIN: lower half of nft_rule_trace.run */
    u32 accept_max;    /* SOCKET, SYN, ACCEPT: the listener's backlog; CHAIN: upper half of nft_rule_trace.run */
    u32 syn_len;       /* SOCKET, SYN, ACCEPT: half-open connections of the listener */
    u16 sport;         /* source port, or ICMP id */
    u16 dport;         /* destination port, or ICMP type << 8 | code */
    u16 orig_sport;    /* conntrack, original direction */
    u16 orig_dport;    /* conntrack, original direction */
    u16 reply_sport;   /* conntrack, reply direction */
    u16 reply_dport;   /* conntrack, reply direction */
    char in_name[16];  /* name of in_ifindex */
    char out_name[16]; /* name of out_ifindex */
    char chain[32];    /* CHAIN: base chain name */
};

#define SHORT_EVENT 96 /* bytes before joint1 */
#define NO_VERDICT 255
#define NO_ICMP_TYPE 65535 /* in dport: an ICMP packet of less than two bytes, which has neither type nor code */
