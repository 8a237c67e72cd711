-- SPDX-License-Identifier: Apache-2.0
-- Packets that took longest through the node.
-- :most = 20  rows
SELECT packet, ROUND(duration_ns / 1000000.0, 3) AS duration_ms, protocol, src, dst, dport, service, verdict
FROM packets
ORDER BY duration_ns DESC, packet
LIMIT :most
