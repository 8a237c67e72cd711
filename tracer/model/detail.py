# SPDX-License-Identifier: Apache-2.0
"""How much the probes write about packets: less when the reader uses more than its budget."""

from __future__ import annotations

from enum import IntEnum


class Detail(IntEnum):
    """`enum detail` of bpf/records/ring.h."""

    WHOLE = 0
    FAILURES = 1
    NOTHING = 2
