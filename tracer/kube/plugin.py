# SPDX-License-Identifier: Apache-2.0
"""Runs a credential plugin (client.authentication.k8s.io): a program, named by a kubeconfig, that prints a token.

Its run time and its output are limited. Beyond a limit it is killed with all processes that it has started.
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
"""Maximum output, bytes."""


def token(command: Sequence[str], environment: Mapping[str, str], seconds: float = SECONDS) -> str:
    """Returns the token that a plugin prints.

    Args:
        command: The program and its arguments.
        environment: Variables in addition to our own.
        seconds: Maximum run time.

    Raises:
        OSError: No token. Its message never contains a token.
    """
    name = command[0]
    try:
        found = json.loads(output(command, environment, seconds))["status"]["token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise OSError(f"{name} gave no token") from None
    if not is_token(found):
        raise OSError(f"{name} gave no token")
    return str(found)


def is_token(value: object) -> bool:
    """Whether a value can be a token or password in a header: printable ASCII without spaces, of limited length."""
    return isinstance(value, str) and 0 < len(value) <= MOST and all("!" <= c <= "~" for c in value)


def output(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> bytes:
    """Returns the output of a plugin. Raises OSError."""
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
    except ValueError as e:  # a zero byte in an argument
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
                # The process was not waited for yet, so the group id is still valid. A survivor would keep our pipe open.
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if status:
        raise OSError(f"{name} gave no token (its exit status is {status})")
    return said


def _read(fd: int, end: float) -> bytes:
    """Reads the next bytes; b"" = end of the output. Raises TimeoutError if nothing comes before `end`."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(max(end - time.monotonic(), 0) * 1000):
        raise TimeoutError
    return os.read(fd, 65536)
