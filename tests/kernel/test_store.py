# SPDX-License-Identifier: Apache-2.0
"""The always-on agent with a store on a real kernel: what it saw is there after it ended, also after kill -9.

pyarrow is no package of Debian: `make store-check` brings it into the machine.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pyarrow = pytest.importorskip("pyarrow")

from pyarrow import dataset  # noqa: E402

from scenes import topology, traffic  # noqa: E402
from tests.kernel.conftest import ROOT  # noqa: E402
from tests.kernel.test_command import COMMAND, END_SECONDS, ENVIRONMENT, wait_until_ready  # noqa: E402
from tests.kernel.untouched import settled, state  # noqa: E402

WITH_PYARROW = ENVIRONMENT | {"PYTHONPATH": f"{ROOT}:{Path(pyarrow.__file__).resolve().parents[1]}"}
PATIENCE_SECONDS = 120.0
"""Longest wait until a packet is in the store or in its spool, s: the rules are read first."""


class Agent:
    """An agent with a store in a directory.

    Args:
        place: Where the store and its spool are.
        name: The part of the name of its files that differs for each agent.
    """

    def __init__(self, place: Path, name: str) -> None:
        self.url, self.spool = (place / "store").as_uri(), place / "spool"
        ready = place / f"{name}.ready"
        words = ["agent", "--metrics", "127.0.0.1:0", "--no-kube", "--ready-file", str(ready)]
        words += ["--store", self.url, "--spool", str(self.spool)]
        self.process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True, env=WITH_PYARROW, cwd=ROOT)
        wait_until_ready(self.process, ready)

    def spooled(self) -> int:
        """Size of the spool, bytes."""
        return sum(path.stat().st_size for path in self.spool.rglob("*") if path.is_file())

    def wait_for_rows(self) -> None:
        """Waits until a packet without an endpoint has been written to the spool."""
        before, until = self.spooled(), time.monotonic() + PATIENCE_SECONDS
        traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY)
        while self.spooled() <= before:
            assert self.process.poll() is None and time.monotonic() < until
            time.sleep(0.2)
        time.sleep(2)

    def end(self) -> str:
        """SIGTERM. Returns what the agent wrote to stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=END_SECONDS)
        assert self.process.returncode == 0 and "Traceback" not in err, err
        return err


def recalled(url: str) -> list[dict[str, Any]]:
    """The packets of the store that were dropped: for each one the rows of its rules, and the rules then in force."""
    rows = (
        dataset.dataset(url.removeprefix("file://") + "/packets", format="parquet", partitioning="hive").to_table().to_pylist()
    )
    keys = [f"{row['node']}:{row['run']}:{row['packet']}" for row in rows if row["outcome"] == "rejected"]
    words = [[*COMMAND, "recall", url, "--packet", key, "-o", "json"] for key in keys]
    done = [subprocess.run(each, capture_output=True, text=True, env=WITH_PYARROW, cwd=ROOT) for each in words]
    assert all(each.returncode == 0 for each in done), done
    return [json.loads(each.stdout.splitlines()[0]) for each in done]


def test_a_drop_is_in_the_store_with_its_rule(node: None, tmp_path: Path) -> None:
    before = state()
    agent = Agent(tmp_path, "one")
    try:
        agent.wait_for_rows()
        print(agent.end())
    finally:
        agent.process.kill()
    assert settled(before) == before
    packets = recalled(agent.url)
    print(json.dumps(packets)[:3000])
    assert packets
    for packet in packets:
        (hit,) = (hit for hit in packet["rule_hits"] if hit["nf_chain"] == "KUBE-EXTERNAL-SERVICES")
        assert "default/lonely-web:http has no endpoints" in hit["rule_comment"]
        (rules,) = (each for each in packet["rules"] if each["ruleset"] == hit["ruleset"])
        assert "KUBE-EXTERNAL-SERVICES" in rules["text"] and "default/lonely-web:http has no endpoints" in rules["text"]


def test_what_a_killed_agent_wrote_is_stored_by_the_next_one(node: None, tmp_path: Path) -> None:
    agent = Agent(tmp_path, "one")
    try:
        agent.wait_for_rows()
    finally:
        agent.process.kill()
        agent.process.wait()
    following = Agent(tmp_path, "two")
    try:
        print(following.end())
    finally:
        following.process.kill()
    assert recalled(agent.url)
