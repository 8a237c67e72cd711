-- SPDX-License-Identifier: Apache-2.0
-- The latest dropped packets, with what dropped them.
-- :most = 20  rows
SELECT node, packet, seen_at, src, dst, dport, service, reason, decided_name AS dropped_by
FROM drops
ORDER BY seen_ns DESC NULLS LAST, node NULLS LAST, packet DESC
LIMIT :most
