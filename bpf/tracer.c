/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The kernel part of k8snet-trace. One header for each subsystem, in the order in which a packet meets them.
 *
 * No kernel header is included: structs.h has the few structures used here, at the offsets from the running kernel's BTF, and
 * plan.h has the function that each probe is attached to. Both are generated at start, by tracer/kernel/struct_layouts.py and
 * tracer/kernel/attach_plan.py. */

/* License of the programs. The kernel allows helpers such as bpf_probe_read_kernel and bpf_ktime_get_ns only to GPL programs,
 * and accepts only the names in include/linux/license.h. This text is under Apache-2.0 OR GPL-2.0-only; here the latter
 * applies. bcc makes the license section of the program from this macro (its default is GPL). */
#define BPF_LICENSE GPL

#include "structs.h"
#include "plan.h"
#include "records/event.h"
#include "records/nft_trace.h"
#include "records/table_trace.h"
#include "records/decision_detail.h"
#include "records/payload.h"

#include "records/loss_counters.h"
#include "records/ring.h"
#include "core/probe.h"
#include "core/packet.h"
#include "core/conntrack.h"
#include "records/filter.h"
#include "core/observation.h"
#include "core/negative_cache.h"
#include "core/nested_call.h"
#include "core/skb_tracking.h"
#include "core/payload.h"
#include "core/emit.h"
#include "core/detail.h"
#include "core/socket.h"
#include "probes/socket_connect.h"

#include "probes/netfilter_hook.h"
#include "probes/ebpf_programs.h"
#include "probes/reject.h"
#include "probes/iptables_generation.h"
#include "probes/iptables_steps.h"
#include "probes/iptables_steps_emit.h"
#include "probes/iptables_extensions.h"
#include "probes/iptables_table.h"
#include "probes/nftables_chain.h"
#include "probes/nftables_forward.h"
#include "probes/nftables_rule.h"
#include "probes/nat.h"
#include "probes/ipvs.h"
#include "probes/socket.h"
#include "probes/socket_lookup.h"
#include "probes/tcp_handshake.h"
#include "probes/tcp_syn_details.h"
#include "probes/neighbour_route.h"
#include "probes/nfqueue.h"
#include "probes/conntrack_drops.h"
#include "probes/drop.h"
#include "probes/clone.h"
