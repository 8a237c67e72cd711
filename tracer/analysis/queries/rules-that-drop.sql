-- SPDX-License-Identifier: Apache-2.0
-- Rules, policies and virtual servers that dropped or rejected the most packets. The owner is empty where packets differ in it.
-- :most = 20  rows
SELECT
    COUNT(*) AS packets, netns, decided_name AS dropped_by,
    CASE WHEN COUNT(owner) = COUNT(*) AND MIN(owner) = MAX(owner) THEN MIN(owner) END AS owner,
    rule_text
FROM drops
WHERE decided_by IN ('rule', 'policy', 'table', 'ipvs')
GROUP BY netns, decided_name, rule_text
ORDER BY packets DESC, netns, dropped_by, rule_text
LIMIT :most
