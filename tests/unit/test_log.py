# SPDX-License-Identifier: Apache-2.0
"""The log of --debug: tracebacks of threads and of the command, without control characters, and only on request."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.waiting import until
from tracer import log
from tracer.cli import main
from tracer.errors import UNEXPECTED
from tracer.util.worker import Worker, user_warnings


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    logger = logging.getLogger(log.ROOT)
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


def test_a_thread_that_fails_is_logged_with_its_traceback_and_goes_on() -> None:
    out, units = io.StringIO(), iter((True, True, False))
    log.enable(out)

    def unit() -> bool:
        follows = next(units)
        if follows:
            raise ValueError("chain \x1b]52;c;x\x07 of a container")
        return follows

    thread = Worker("reader", unit).start()
    until(lambda: not thread.is_alive())
    user_warnings.read()
    assert out.getvalue().count("ValueError: chain \\x1b]52;c;x\\x07 of a container") == 2
    assert out.getvalue().count("Traceback (most recent call last):") == 2
    assert "reader tracer.util.worker: the thread 'reader' failed" in out.getvalue()


@pytest.mark.parametrize("debug", [False, True])
def test_a_defect_is_one_sentence_with_a_status_of_its_own(
    debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: Any) -> int:
        raise KeyError("tables\n")

    monkeypatch.setattr("tracer.commands.doctor.run", fail)
    with pytest.raises(SystemExit) as ended:
        main.main(["doctor", *["--debug"] * debug])
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == UNEXPECTED == 70
    sentence = r"k8snet-trace: Unexpected error at test_log.py:\d+, KeyError: 'tables\\n'\."
    hint = " Run it again with --debug for its traceback, and report it."
    assert lines[-1].startswith("k8snet-trace: Unexpected error at test_log.py:")
    assert lines[-1].endswith(f"KeyError: 'tables\\n'.{'' if debug else hint}"), sentence
    assert ("Traceback (most recent call last):" in "\n".join(lines)) == debug
    assert len(lines) == 1 or debug


@pytest.mark.parametrize("command", sorted(main.command.commands))
def test_every_command_has_it(command: str) -> None:
    assert any("--debug" in each.opts for each in main.command.commands[command].params)
