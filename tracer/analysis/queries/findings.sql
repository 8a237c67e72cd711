-- SPDX-License-Identifier: Apache-2.0
-- What is wrong, with cause and cure.
SELECT finding, is_certain, packets, cause, to_check, cure
FROM findings
ORDER BY is_certain DESC, packets DESC, finding, cause NULLS LAST
