-- SPDX-License-Identifier: Apache-2.0
-- How long a SYN ACK took, by Service: median, 99th percentile (nearest rank) and maximum, in ms. SYNs without a SYN ACK are counted.
-- :most = 20  rows
WITH ranked AS (
    SELECT
        namespace, service, service_port, after_ns, answer,
        ROW_NUMBER() OVER (
            PARTITION BY namespace, service, service_port, CASE WHEN answer = 'SYN ACK' THEN 1 ELSE 0 END ORDER BY after_ns
        ) AS place,
        SUM(CASE WHEN answer = 'SYN ACK' THEN 1 ELSE 0 END) OVER (PARTITION BY namespace, service, service_port) AS answers
    FROM syns
)
SELECT
    namespace, service, service_port,
    COUNT(*) AS syns,
    MAX(answers) AS answered,
    FLOOR(MIN(CASE WHEN answer = 'SYN ACK' AND place * 100 >= answers * 50 THEN after_ns END) / 1e3 + 0.5) / 1e3 AS p50_ms,
    FLOOR(MIN(CASE WHEN answer = 'SYN ACK' AND place * 100 >= answers * 99 THEN after_ns END) / 1e3 + 0.5) / 1e3 AS p99_ms,
    FLOOR(MAX(CASE WHEN answer = 'SYN ACK' THEN after_ns END) / 1e3 + 0.5) / 1e3 AS max_ms
FROM ranked
GROUP BY namespace, service, service_port
ORDER BY CASE WHEN MAX(answers) = 0 THEN 1 ELSE 0 END, p99_ms DESC NULLS LAST, namespace NULLS LAST, service NULLS LAST, service_port NULLS LAST
LIMIT :most
