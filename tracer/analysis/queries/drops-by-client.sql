-- SPDX-License-Identifier: Apache-2.0
-- Clients whose packets were dropped most, and where to.
-- :most = 20  rows
SELECT COUNT(*) AS packets, src, client_workload AS client, protocol, dst, dport, date_trunc('second', MAX(seen_at)) AS last_seen
FROM drops
GROUP BY src, client_namespace, client_workload, protocol, dst, dport
ORDER BY packets DESC, src NULLS LAST, client NULLS LAST, protocol NULLS LAST, dst NULLS LAST, dport NULLS LAST
LIMIT :most
