# SPDX-License-Identifier: Apache-2.0
"""Adds what the scene of pods and client does not have: addresses, another node behind a tunnel. Uses ip(8)."""

from __future__ import annotations

import subprocess
from itertools import groupby
from pathlib import Path

RUN_DIR = Path("/var/run/netns")


def ip(*lines: str) -> None:
    """Runs `ip LINE` for each line, in order. Raises CalledProcessError."""
    # One process for all consecutive lines of one namespace.
    for options, of in groupby((_split_namespace(line) for line in lines), key=lambda pair: pair[0]):
        text = "".join(f"{rest}\n" for _, rest in of)
        subprocess.run(["ip", *options, "-batch", "-"], input=text, check=True, capture_output=True, text=True)


def _split_namespace(line: str) -> tuple[tuple[str, ...], str]:
    """The namespace of a line, as options of ip(8), and the rest of the line."""
    words = line.split()
    return (tuple(words[:2]), " ".join(words[2:])) if words[0] == "-n" else ((), line)


def remove_link(name: str) -> None:
    """Removes a link of this namespace, if it exists."""
    subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


def remove_namespace(name: str) -> None:
    if (RUN_DIR / name).exists():
        ip(f"netns del {name}")


def ipset(text: str) -> None:
    """Makes the sets of a text in the format of `ipset save`."""
    subprocess.run(["ipset", "restore", "-exist"], input=text, check=True, capture_output=True, text=True)


def remove_sets() -> None:
    """Removes all ipsets that no rule uses."""
    subprocess.run(["ipset", "destroy"], check=False, capture_output=True)
