-- SPDX-License-Identifier: Apache-2.0
-- SYNs at each listener: accepted, not accepted, and the slowest answer in ms.
-- :most = 50  rows
SELECT
    listener_netns, listener, reached_dport AS port,
    COUNT(*) AS syns,
    SUM(CASE WHEN is_accepted THEN 1 ELSE 0 END) AS accepted,
    SUM(CASE WHEN is_accepted THEN 0 ELSE 1 END) AS not_accepted,
    FLOOR(MAX(after_ns) / 1e3 + 0.5) / 1e3 AS max_ms
FROM syns
WHERE listener IS NOT NULL
GROUP BY listener_netns, listener, reached_dport
ORDER BY not_accepted DESC, syns DESC, listener_netns NULLS LAST, listener, port NULLS LAST
LIMIT :most
