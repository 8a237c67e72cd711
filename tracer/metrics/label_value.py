# SPDX-License-Identifier: Apache-2.0
"""Text of others as the value of a label: names of objects, chains, processes and namespaces.

The library escapes quotes, backslashes and line breaks when it writes the metrics. Here a value gets its largest length, and
what is no printable character, or no UTF-8, becomes visible: a dashboard shows it.
"""

from __future__ import annotations

from tracer.util.escape import escaped

MOST_CHARACTERS = 120
"""Largest length of a value, characters. Longer values with the same beginning are one."""
CUT = "…"
"""Stands for the rest of a longer value."""
NONE = "none"
"""Value where there is nothing: no rule decided, or the rule has no owner. An empty value would be an absent label."""
UNKNOWN = "unknown"
"""Value where it is not known what there is."""
OTHER = "other"
"""Value of all labels of the series for label sets without a series of their own."""


def label_value(text: str) -> str:
    """The value of a label; NONE for an empty text."""
    value = escaped(text[: MOST_CHARACTERS + 1])
    return (value if len(value) <= MOST_CHARACTERS else value[: MOST_CHARACTERS - 1] + CUT) or NONE
