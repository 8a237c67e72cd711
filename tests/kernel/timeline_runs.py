# SPDX-License-Identifier: Apache-2.0
"""Traces connections as `--follow` does, with conntrack's events and the verdicts; keeps the timelines and their text."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from tests.kernel.watching import Watch
from tracer.connections.change_log import ChangeLog
from tracer.connections.tracker import ConnectionTracker
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.filter import Filter
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
from tracer.pipeline.connection_stage import ConnectionStage
from tracer.render.text import TextOutput


class TimelineOutput(TextOutput):
    """The text format; keeps the text and the timelines. Parts of a timeline that is reported more than once are joined."""

    def __init__(self) -> None:
        self.written = io.StringIO()
        self.timelines: list[Timeline] = []
        super().__init__(self.written, self.written)

    def timeline(self, timeline: Timeline) -> None:
        super().timeline(timeline)
        before = next((t for t in self.timelines if (t.key, t.origin) == (timeline.key, timeline.origin)), None)
        if before:
            self.timelines.remove(before)
        entries = [*(before.entries if before else ()), *timeline.entries]
        self.timelines.append(replace(timeline, entries=entries))


@dataclass
class FollowedRun:
    """The output of one run. summary: filled at the end."""

    output: TimelineOutput = field(default_factory=TimelineOutput)
    summary: RunSummary = field(default_factory=RunSummary)

    @property
    def text(self) -> str:
        return self.output.written.getvalue()

    def timelines_to(self, port: int, protocol: str = "TCP") -> list[Timeline]:
        """The timelines of connections that a client opened to this port, in order of time."""
        found = [t for t in self.output.timelines if t.key.protocol == protocol and t.asked.dport == port]
        return sorted(found, key=lambda t: t.origin)


def follow(watch: Watch, ports: tuple[int, ...], make: Callable[[], object]) -> FollowedRun:
    """Follows the connections that `make` makes."""
    with following(watch, ports) as followed:
        make()
    return followed


@contextmanager
def following(watch: Watch, ports: tuple[int, ...]) -> Iterator[FollowedRun]:
    """Follows the connections of the block; its packets and timelines are there when the block has ended."""
    followed, view, changes = FollowedRun(), ClusterView(ObjectStore(), CniCache()), ChangeLog()
    with closing(
        ConnectionStage(HandshakeAnalyzer(), ConnectionTracker(time.time_ns() - time.monotonic_ns()), changes)
    ) as stage:
        stage.begin(followed.output)
        with watch(Filter(ports=ports), on_rule_change=changes.add_rule_change) as seen:
            yield followed
        stage.end_batch(0, followed.output)  # rule changes are known at once, packets only when they are complete
        for packet in seen.packets:
            stage.feed(attribute(packet, view), followed.output)
        stage.end_batch(time.monotonic_ns(), followed.output)
        stage.flush(followed.summary, followed.output)
