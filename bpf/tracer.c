/* k8snet-trace, in the kernel. One header a subsystem, in the order a packet meets them.
 *
 * No kernel header is included anywhere: structs.h holds the few structures used here, at the offsets that the running
 * kernel's BTF gives, and plan.h says which probe is attached to which function. Both are generated at start, by
 * tracer/kernel/layouts.py and tracer/kernel/plan.py. */

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
