-- SPDX-License-Identifier: Apache-2.0
-- Dropped packets by reason and interval.
-- :interval = minute  second, minute, hour or day
SELECT
    date_trunc(:interval, seen_at) AS interval_begin,
    COALESCE(reason, kernel_function, 'not known') AS drop_reason,
    COUNT(*) AS packets
FROM drops
GROUP BY date_trunc(:interval, seen_at), COALESCE(reason, kernel_function, 'not known')
ORDER BY interval_begin, packets DESC, drop_reason
