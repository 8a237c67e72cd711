"""The system's own tools that print rules: iptables-save and its kin, nft. They only read."""

from __future__ import annotations

import os
import shutil
import subprocess

from tracer.octets import decoded

PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"
SECONDS = 60
"""How long one may take."""


def find(name: str) -> str | None:
    """Where a tool is; None when it is not installed."""
    return shutil.which(name) or shutil.which(name, path=PATH)


def printed(*command: str) -> str:
    """What it prints, by way of a file in memory: 80,000 rules through a pipe take longer than printing them.

    Raises OSError when it cannot be run, fails or takes too long.
    """
    with open(os.memfd_create(command[0]), "r+b") as out:
        try:
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired as e:
            raise OSError(f"{command[0]} took longer than {SECONDS} s") from e
        if done.returncode:
            raise OSError(done.returncode, f"{command[0]}: {done.stderr.decode(errors='replace').strip()}")
        out.seek(0)
        return decoded(out.read())
