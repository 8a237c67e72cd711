# SPDX-License-Identifier: Apache-2.0
"""Fixtures and settings for all tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.api_server import ApiServer
from tests.support.nodes import node
from tracer.cli import main
from tracer.packets.assembler import DIFFERENT
from tracer.render import _clock
from tracer.util.worker import user_warnings

with suppress(ImportError):  # the virtual machines of the kernel tests do not have hypothesis
    from hypothesis import HealthCheck, settings

    # The duration of an example depends on the machine only.
    settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy machine")


os.environ["K8SNET_COMPARED_EVERY"] = "1"  # every packet on a shared path is explained in both ways, and compared


@pytest.fixture(autouse=True)
def same_time_zone() -> Iterator[None]:
    """Restores the time zone: reading a capture sets the time zone of its node."""
    before = os.environ.get("TZ")
    yield
    os.environ.pop("TZ", None)
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()
    _clock._second.cache_clear()
    _clock._date.cache_clear()


@pytest.fixture(autouse=True)
def warnings_of_one_test() -> Iterator[None]:
    """No test gets warnings of another one, and in none was a packet on a shared path explained in two ways that differ."""
    yield
    is_different = DIFFERENT in user_warnings._keys
    user_warnings.read()
    user_warnings._keys.clear()
    assert not is_different


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process, as a user who is not root: (status, out, err)."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def command(*args: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as e:
            main.main([str(a) for a in args])
        printed = capsys.readouterr()
        return int(e.value.code or 0), printed.out, printed.err

    return command


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """The API of a recorded real cluster, for its node-1."""
    monkeypatch.setenv("NODE_NAME", "node-1")
    with ApiServer(node("1.36.2-iptables-nft", "S2-three").objects) as one:
        yield one
