-- SPDX-License-Identifier: Apache-2.0
-- Packets by outcome and protocol, and how many of them are incomplete.
SELECT
    outcome, protocol, COUNT(*) AS packets,
    SUM(CASE WHEN is_complete THEN 0 ELSE 1 END) AS incomplete
FROM packets
GROUP BY outcome, protocol
ORDER BY packets DESC, outcome, protocol NULLS LAST
