# SPDX-License-Identifier: Apache-2.0
"""Connections traced as `--follow` does: packets, what conntrack says, verdicts; as timelines and as their text."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class Kept(TextOutput):
    """The text format, and the timelines themselves."""

    def __init__(self) -> None:
        self.written = io.StringIO()
        self.timelines: list[Timeline] = []
        super().__init__(self.written, self.written)

    def timeline(self, timeline: Timeline) -> None:
        super().timeline(timeline)
        before = next((t for t in self.timelines if (t.key, t.origin) == (timeline.key, timeline.origin)), None)
        if before:
            self.timelines.remove(before)
        steps = [*(before.entries if before else ()), *timeline.entries]
        self.timelines.append(replace(timeline, entries=steps))


@dataclass
class Story:
    """What was told. totals: filled at the end."""

    output: Kept = field(default_factory=Kept)
    summary: RunSummary = field(default_factory=RunSummary)

    @property
    def text(self) -> str:
        return self.output.written.getvalue()

    def of(self, port: int, protocol: str = "TCP") -> list[Timeline]:
        """The timelines of connections that asked for a port."""
        found = [t for t in self.output.timelines if t.key.protocol == protocol and t.asked.dport == port]
        return sorted(found, key=lambda t: t.origin)


def follow(watch: Watch, ports: tuple[int, ...], make: Callable[[], object]) -> Story:
    """Follows the connections that `make` makes."""
    with following(watch, ports) as story:
        make()
    return story


@contextmanager
def following(watch: Watch, ports: tuple[int, ...]) -> Iterator[Story]:
    """Follows what happens in the block; the story is told when it ends."""
    story, known, changes = Story(), ClusterView(ObjectStore(), CniCache()), ChangeLog()
    with ConnectionStage(HandshakeAnalyzer(), ConnectionTracker(time.time_ns() - time.monotonic_ns()), changes) as told:
        told.start(story.output)
        with watch(Filter(ports=ports), changed=changes.add_rule_change) as seen:
            yield story
        told.expire(0, story.output)  # changes come at once, packets when they are over
        for packet in seen.packets:
            attribute(packet, known)
            told.feed(packet)
        told.expire(time.monotonic_ns(), story.output)
        told.flush(story.summary, story.output)
