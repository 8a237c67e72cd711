-- SPDX-License-Identifier: Apache-2.0
-- What was lost while recording, by probe and reason: where this has rows, a missing packet proves nothing.
SELECT SUM(lost) AS lost, probe, reason, MIN(since_at) AS first_after, MAX(until_at) AS last_before
FROM losses
GROUP BY probe, reason
ORDER BY lost DESC, probe, reason
