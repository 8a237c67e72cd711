# SPDX-License-Identifier: Apache-2.0
"""Generations of iptables tables for tests, with a table reader that returns prepared snapshots."""

from __future__ import annotations

from tracer.rules.iptables.generations import TableGenerations
from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot

READER_THREAD = 77


class FakeTableReader:
    """A table reader; the test puts its answers into `ready`."""

    def __init__(self) -> None:
        self.requests: list[TableRequest] = []
        self.ready: list[TableSnapshot] = []

    def request(self, request: TableRequest) -> None:
        self.requests.append(request)

    def read(self) -> list[TableSnapshot]:
        ready, self.ready = self.ready, []
        return ready

    def close(self) -> None: ...


def new_generations() -> tuple[TableGenerations, FakeTableReader]:
    reader = FakeTableReader()
    return TableGenerations(reader, lambda extension: extension == ("target", "DNAT", 2, "ip")), reader
