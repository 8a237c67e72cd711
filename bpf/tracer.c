/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* k8snet-trace, in the kernel. One header a subsystem, in the order a packet meets them.
 *
 * No kernel header is included anywhere: structs.h holds the few structures used here, at the offsets that the running
 * kernel's BTF gives, and plan.h says which probe is attached to which function. Both are generated at start, by
 * tracer/kernel/layouts.py and tracer/kernel/plan.py. */

/* What the kernel is told: it gives helpers such as bpf_probe_read_kernel and bpf_ktime_get_ns to programs under the GPL alone, and
 * takes only the names in include/linux/license.h. This text is under Apache-2.0 OR GPL-2.0-only; here the latter counts. bcc makes
 * the program's license section of this macro (and would say GPL without it). */
#define BPF_LICENSE GPL

#include "structs.h"
#include "plan.h"
#include "event.h"
#include "nft_hit.h"
#include "steps.h"
#include "clue.h"
#include "raw.h"

#include "tally.h"
#include "ring.h"
#include "probe.h"
#include "packet.h"
#include "conntrack.h"
#include "filter.h"
#include "sight.h"
#include "unwanted.h"
#include "follow.h"
#include "snap.h"
#include "emit.h"

#include "netfilter.h"
#include "reject.h"
#include "ruleset.h"
#include "rule.h"
#include "rule_record.h"
#include "watch.h"
#include "iptables.h"
#include "nftables.h"
#include "nft_taking.h"
#include "nft_rule.h"
#include "nat.h"
#include "ipvs.h"
#include "socket.h"
#include "tcp.h"
#include "syn.h"
#include "nexthop.h"
#include "tracking.h"
#include "drop.h"
#include "clone.h"
