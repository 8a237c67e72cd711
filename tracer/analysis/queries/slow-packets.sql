-- SPDX-License-Identifier: Apache-2.0
-- Packets that took longest through the node.
-- :most = 20  rows
SELECT node, packet, FLOOR(duration_ns / 1e3 + 0.5) / 1e3 AS duration_ms, protocol, src, dst, dport, service, verdict
FROM packets
ORDER BY duration_ns DESC NULLS LAST, node NULLS LAST, packet
LIMIT :most
