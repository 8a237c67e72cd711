-- SPDX-License-Identifier: Apache-2.0
-- The latest dropped packets, with what dropped them.
-- :most = 20  rows
SELECT packet, seen_at, src, dst, dport, service, reason, decided_name AS dropped_by
FROM drops
ORDER BY seen_ns DESC, packet DESC
LIMIT :most
