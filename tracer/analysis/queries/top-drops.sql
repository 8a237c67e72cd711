-- SPDX-License-Identifier: Apache-2.0
-- Services with the most dropped packets, and the most frequent reason. Drops of no known Service stand in the row without one.
-- :most = 20  rows
WITH by_reason AS (
    SELECT namespace, service, service_port, COALESCE(reason, kernel_function, 'not known') AS drop_reason, COUNT(*) AS packets
    FROM drops
    GROUP BY namespace, service, service_port, COALESCE(reason, kernel_function, 'not known')
),
ranked AS (
    SELECT
        namespace, service, service_port, drop_reason, packets,
        SUM(packets) OVER (PARTITION BY namespace, service, service_port) AS dropped,
        ROW_NUMBER() OVER (PARTITION BY namespace, service, service_port ORDER BY packets DESC, drop_reason) AS place
    FROM by_reason
)
SELECT dropped, namespace, service, service_port, drop_reason AS main_reason, packets AS for_this_reason
FROM ranked
WHERE place = 1
ORDER BY dropped DESC, namespace NULLS LAST, service NULLS LAST, service_port NULLS LAST
LIMIT :most
