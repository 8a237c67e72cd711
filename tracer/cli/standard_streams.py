# SPDX-License-Identifier: Apache-2.0
"""Reopens standard input, output and error where the parent process has closed them (`>&-`).

A closed stream is dangerous: the next file that is opened, a capture for example, gets its file descriptor, and anything
that a library then prints is written into that file. Python also has None in place of a closed stream.
"""

from __future__ import annotations

import os
import sys


def complete() -> bool:
    """Opens /dev/null in place of each closed stream; returns whether standard output was closed."""
    missing = sys.stdout is None
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest free number, until all three are taken
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (open as long as the process)
    return missing
