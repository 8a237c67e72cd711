-- SPDX-License-Identifier: Apache-2.0
-- Connections an endpoint: how evenly a Service's connections are spread over its pods. failed: refused, reset, or dropped
-- without any answer.
-- :most = 50  rows
SELECT
    namespace, service, workload, endpoint_address AS address, endpoint_port AS port,
    COUNT(*) AS connections,
    SUM(CASE WHEN state IN ('refused', 'reset') OR (dropped > 0 AND reply_packets = 0) THEN 1 ELSE 0 END) AS failed
FROM connections
WHERE endpoint_address IS NOT NULL
GROUP BY namespace, service, workload, endpoint_address, endpoint_port
ORDER BY connections DESC, namespace NULLS LAST, service NULLS LAST, workload NULLS LAST, address, port NULLS LAST
LIMIT :most
