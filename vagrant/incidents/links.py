"""Links that the scene of pods and client does not have: addresses, another node behind a tunnel. Uses ip(8)."""

from __future__ import annotations

import subprocess
from pathlib import Path

RUN_DIR = Path("/var/run/netns")


def ip(*lines: str) -> None:
    """Runs `ip LINE` for each line, in order. CalledProcessError."""
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True, capture_output=True, text=True)


def remove_link(name: str) -> None:
    """Removes a link of this namespace; none of that name is no error."""
    subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


def remove_namespace(name: str) -> None:
    if (RUN_DIR / name).exists():
        ip(f"netns del {name}")


def ipset(text: str) -> None:
    """Makes the sets of a text as `ipset save` prints it."""
    subprocess.run(["ipset", "restore", "-exist"], input=text, check=True, capture_output=True, text=True)


def remove_sets() -> None:
    """Removes all ipsets that no rule uses."""
    subprocess.run(["ipset", "destroy"], check=False, capture_output=True)
