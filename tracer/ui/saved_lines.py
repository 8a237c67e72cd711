# SPDX-License-Identifier: Apache-2.0
"""The file with saved packets: the lines of `-o json`, of a run on one node or on several."""

from __future__ import annotations

import io
from pathlib import Path

from tracer.model.joined_packet import JoinedPacket, ShownPacket
from tracer.model.summary import RunSummary
from tracer.render.base import Output
from tracer.render.json import JsonOutput
from tracer.ui.feed import ScreenFeed
from tracer.ui.node_results import NodeFinding
from tracer.util.new_file import fresh


class SavedLines:
    """Writes the lines.

    Args:
        target: The new file.
        feed: The run.

    Raises:
        OSError: The file exists, or cannot be written; also by each method.
    """

    def __init__(self, target: Path, feed: ScreenFeed) -> None:
        self._file = open(fresh(target), "w", encoding="utf-8")  # noqa: SIM115  # closed by close()
        self._json = JsonOutput(self._file, io.StringIO())
        self._outputs: dict[str, Output] = {name: self._json.for_node(name) for name in feed.nodes}
        for name, begin in feed.nodes.items():
            self._outputs[name].begin(begin.results, begin.options, begin.kernel)
        if not feed.nodes:
            self._json.begin(feed.results, feed.title, feed.kernel)

    def packet(self, shown: ShownPacket) -> None:
        """A packet: as its node saw it, or with its views on several nodes."""
        if not isinstance(shown, JoinedPacket):
            self._json.packet(shown)
        elif shown.links:
            self._json.joined(shown)
        else:
            for view in shown.views:
                self._of(view.node).packet(view.packet)

    def finding(self, found: NodeFinding) -> None:
        """A finding, with its node if that is known."""
        self._of(found.node).finding(found.finding)

    def _of(self, node: str) -> Output:
        return self._outputs.get(node, self._json)

    def close(self, summary: RunSummary) -> None:
        """The end of the file."""
        self._json.summary(summary)
        self._file.close()
