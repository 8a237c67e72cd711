-- SPDX-License-Identifier: Apache-2.0
-- Traffic of each Service: connections, packets, bytes, and what went wrong. failed: connections that were refused, reset, or
-- dropped without any answer.
-- :most = 50  rows
WITH totals AS (
    SELECT
        namespace, service, service_port,
        COUNT(*) AS connections,
        SUM(packets) AS packets_total,
        SUM(length) AS bytes_total,
        SUM(dropped) AS dropped_total,
        SUM(CASE WHEN state IN ('refused', 'reset') OR (dropped > 0 AND reply_packets = 0) THEN 1 ELSE 0 END) AS failed
    FROM connections
    WHERE service IS NOT NULL
    GROUP BY namespace, service, service_port
)
SELECT
    namespace, service, service_port AS port, connections, packets_total AS packets, bytes_total,
    dropped_total AS dropped, failed
FROM totals
ORDER BY packets_total DESC, namespace NULLS LAST, service, port NULLS LAST
LIMIT :most
