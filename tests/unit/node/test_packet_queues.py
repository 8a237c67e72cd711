# SPDX-License-Identifier: Apache-2.0
"""The queues of NFQUEUE rules to which processes are bound, from /proc/net/netfilter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.node.procnet import packet_queues

TWO = "    0  12345     0 2 65531     0     0        0  1\n    7 -41234     3 1     0     2     0       31  1\n"


@pytest.mark.parametrize(("text", "queues"), [(TWO, (0, 7)), ("", ()), ("shop\n", None)])
def test_the_numbers_of_the_queues(text: str, queues: tuple[int, ...] | None, tmp_path: Path) -> None:
    (tmp_path / "netfilter").mkdir()
    (tmp_path / "netfilter/nfnetlink_queue").write_text(text)
    assert packet_queues(tmp_path) == queues


def test_without_the_module_no_process_can_be_bound(tmp_path: Path) -> None:
    (tmp_path / "netfilter").mkdir()
    assert packet_queues(tmp_path) == ()


def test_without_the_folder_nothing_is_known(tmp_path: Path) -> None:
    assert packet_queues(tmp_path) is None
