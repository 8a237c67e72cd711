-- SPDX-License-Identifier: Apache-2.0
-- Rules that decided most often, whatever their verdict.
-- :most = 30  rows
SELECT COUNT(*) AS times_decided, rule, verdict, owner, rule_text
FROM rule_hits
WHERE is_deciding AND NOT is_policy
GROUP BY rule, verdict, owner, rule_text
ORDER BY times_decided DESC, rule NULLS LAST, verdict NULLS LAST, owner NULLS LAST, rule_text NULLS LAST
LIMIT :most
