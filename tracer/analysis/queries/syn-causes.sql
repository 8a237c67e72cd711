-- SPDX-License-Identifier: Apache-2.0
-- Why SYNs ended as they did, by Service; those that were not accepted come first.
-- :most = 50  rows
SELECT COUNT(*) AS syns, is_accepted, cause, cause_evidence AS evidence, namespace, service
FROM syns
GROUP BY is_accepted, cause, cause_evidence, namespace, service
ORDER BY is_accepted, syns DESC, cause NULLS LAST, evidence NULLS LAST, namespace NULLS LAST, service NULLS LAST
LIMIT :most
