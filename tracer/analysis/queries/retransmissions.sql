-- SPDX-License-Identifier: Apache-2.0
-- Connections with the most packets that were sent again.
-- :most = 20  rows
SELECT node, connection, protocol, src, dst, dport, service, workload, retransmitted, packets
FROM connections
WHERE retransmitted > 0
ORDER BY retransmitted DESC, node NULLS LAST, connection
LIMIT :most
