-- SPDX-License-Identifier: Apache-2.0
-- Rules, policies and virtual servers that dropped or rejected the most packets. The owner is empty where packets differ in it.
-- :most = 20  rows
WITH totals AS (
    SELECT
        COUNT(*) AS packets, netns, decided_name AS dropped_by, rule_text,
        CASE WHEN COUNT(owner) = COUNT(*) AND MIN(owner) = MAX(owner) THEN MIN(owner) END AS only_owner
    FROM drops
    WHERE decided_by IN ('rule', 'policy', 'table', 'ipvs')
    GROUP BY netns, decided_name, rule_text
)
SELECT packets, netns, dropped_by, only_owner AS owner, rule_text
FROM totals
ORDER BY packets DESC, netns NULLS LAST, dropped_by NULLS LAST, rule_text NULLS LAST
LIMIT :most
