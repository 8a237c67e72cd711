# SPDX-License-Identifier: Apache-2.0
"""A line of text with places for values, made from a line that has a mark in place of each value.

So the code that writes the line of one packet also gives the template for all packets of its path.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from operator import itemgetter

_LOWEST = 10**17
_MARK = re.compile(r"(?<!\d)(\d{18})(?!\d)")


def new_mark() -> int:
    """A number with 18 digits, chosen at random, so that no other number in a line is equal to it."""
    return _LOWEST + secrets.randbelow(9 * _LOWEST)


class LineTemplate:
    """A line with places for values.

    Args:
        line: The line with marks. A mark that another digit follows or precedes is no place.
        marks: The mark of each value; a value without one in the line is not shown.
    """

    def __init__(self, line: str, marks: Sequence[int]) -> None:
        parts, places = _MARK.split(line), {str(mark): place for place, mark in enumerate(marks)}
        self._text = "".join("%s" if part in places else part.replace("%", "%%") for part in parts)
        self._pick = _picker([places[part] for part in parts if part in places])

    def fill(self, values: Sequence[object]) -> str:
        """The line with these values, which are in the order of the marks."""
        return self._text % self._pick(values)


def _picker(places: Sequence[int]) -> Callable[[Sequence[object]], tuple[object, ...]]:
    """Picks the values at these places, as a tuple."""
    return itemgetter(*places) if len(places) > 1 else lambda values: tuple(values[place] for place in places)
