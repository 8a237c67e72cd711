-- SPDX-License-Identifier: Apache-2.0
-- Connections with the most bytes.
-- :most = 20  rows
SELECT node, connection, src, dst, dport, service, packets, length AS bytes_total, state
FROM connections
ORDER BY bytes_total DESC NULLS LAST, node NULLS LAST, connection
LIMIT :most
