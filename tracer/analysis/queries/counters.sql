-- SPDX-License-Identifier: Apache-2.0
-- Kernel counters that changed, and how much of it the packets of the run explain.
SELECT netns, counter, counted, explained, unexplained
FROM counters
ORDER BY ABS(unexplained) DESC, netns NULLS LAST, counter
