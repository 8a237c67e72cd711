# SPDX-License-Identifier: Apache-2.0
"""Standard input, output and error, of which whoever starts a command may have closed any (`>&-`).

A closed one is dangerous: its number goes to the next file that is opened, a capture for example, and whatever a library then
prints ends up there. And Python has None in its place.
"""

from __future__ import annotations

import os
import sys


def complete() -> bool:
    """Opens those that are closed on /dev/null; returns whether standard output was one of them."""
    missing = sys.stdout is None
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest free number, until all three are taken
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (open as long as the process)
    return missing
