-- SPDX-License-Identifier: Apache-2.0
-- Connections with the most bytes.
-- :most = 20  rows
SELECT connection, src, dst, dport, service, packets, length AS bytes_total, state
FROM connections
ORDER BY bytes_total DESC, connection
LIMIT :most
