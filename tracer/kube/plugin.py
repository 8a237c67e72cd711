# SPDX-License-Identifier: Apache-2.0
"""Runs a credential plugin (client.authentication.k8s.io): a program that a kubeconfig names, which prints a token.

Its time and its output have a bound; what it has started ends with it when a bound is passed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

SECONDS = 30.0
MOST = 1_000_000
"""Bytes that it may print."""


def token(command: Sequence[str], environment: Mapping[str, str], seconds: float = SECONDS) -> str:
    """The token that it prints. environment: beside our own. Raises OSError with a sentence that has no token in it."""
    name = command[0]
    try:
        found = json.loads(output(command, environment, seconds))["status"]["token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise OSError(f"{name} gave no token") from None
    if not is_token(found):
        raise OSError(f"{name} gave no token")
    return str(found)


def is_token(value: object) -> bool:
    """Whether it can be a token or a password in a header: printable ASCII without spaces, and not endless."""
    return isinstance(value, str) and 0 < len(value) <= MOST and all("!" <= c <= "~" for c in value)


def output(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> bytes:
    """What it prints. Raises OSError."""
    name, end, said = command[0], time.monotonic() + seconds, b""
    try:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except ValueError as e:  # a zero byte in a word
        raise OSError(f"{name!r} cannot be run") from e
    assert process.stdout
    with process.stdout as out:
        try:
            while more := _read(out.fileno(), end):
                said += more
                if len(said) > MOST:
                    raise OSError(f"{name} prints more than {MOST} bytes")
            status = process.wait(max(end - time.monotonic(), 0.1))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise OSError(f"{name} took longer than {seconds:g} s") from None
        finally:
            if process.returncode is None:
                # Not yet waited for, so the group is still its own. All of it: one that stays would hold our pipe open.
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if status:
        raise OSError(f"{name} gave no token (its exit status is {status})")
    return said


def _read(fd: int, end: float) -> bytes:
    """What can be read next, b"" at the end of it. Raises TimeoutError when nothing comes before `end`."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(max(end - time.monotonic(), 0) * 1000):
        raise TimeoutError
    return os.read(fd, 65536)
