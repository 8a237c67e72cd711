-- SPDX-License-Identifier: Apache-2.0
-- What was lost while recording, by probe and reason: where this has rows, a missing packet proves nothing.
WITH totals AS (
    SELECT SUM(lost) AS total, probe, reason, MIN(since_at) AS first_after, MAX(until_at) AS last_before
    FROM losses
    GROUP BY probe, reason
)
SELECT total AS lost, probe, reason, first_after, last_before
FROM totals
ORDER BY total DESC, probe, reason
