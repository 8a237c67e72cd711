# SPDX-License-Identifier: Apache-2.0
"""The run: one loop reads all agents, one thread pings them. A slow, silent or dead node holds nobody up."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tracer.cluster.agent_process import AgentProcess
from tracer.cluster.cluster_totals import ClusterTotals, add_summary
from tracer.cluster.join_horizon import Horizon, JoinHorizon
from tracer.cluster.node_captures import NodeCaptures
from tracer.cluster.node_outputs import NodeOutputs
from tracer.cluster.node_stream import Result
from tracer.cluster.packet_stage import PacketStage
from tracer.cluster.recorded_clock import RecordedClock
from tracer.cluster_findings import ClusterFindings
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket, NodeView
from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
from tracer.pipeline.shutdown import StopRequest
from tracer.protocol.limits import LEASE_SECONDS, PING_SECONDS
from tracer.protocol.malformed_frame import MalformedFrame
from tracer.protocol.messages import BatchEnd, Begin, FrameKind, Note, Shed
from tracer.render.base import Output
from tracer.util.worker import Worker

READ_BYTES = 1 << 16
"""Most bytes that are read of one node before the next one has its turn."""
WAIT_SECONDS = 0.1
"""Longest wait for the nodes, s."""
MOST_STARTING = 16
"""Number of agents that are started at a time: each kubectl takes about 50 MB and a moment of the API server."""
HELLO_SECONDS = 60.0
"""Time in which an agent has to say hello, s: a debug pod may have to pull its image."""
SILENCE_SECONDS = LEASE_SECONDS
"""Time without a word after which the user is informed about a node, s."""
MOST_PROBES = 1000
"""Largest number of probes whose losses are counted apart; a node has about a hundred."""
END_SECONDS = 15.0
"""Time that agents get for their summaries after a request to end, s: they explain what they have seen for 5 s."""
LEAVE_SECONDS = 2.0
"""Time that kubectl gets to end after its input was closed, and then after SIGTERM, s."""


@dataclass(frozen=True)
class NodeCommand:
    """A node, and the command that starts its agent. clock: that of a recorded node; None = the node answers pings."""

    node: str
    command: Sequence[str]
    clock: RecordedClock | None = None


class ClusterRun:
    """Runs agents on nodes.

    Args:
        commands: The nodes.
        output: Where results are written.
        stage: What packets pass.
        count: The run ends after this many packets; 0 = no limit.
        captures: Takes the captures of the nodes; None = none are written.
        horizon: Up to which time all packets have come; None = packets wait for no other node.
        findings: Looks at what several nodes together show; None = nothing does.
    """

    def __init__(
        self,
        commands: Sequence[NodeCommand],
        output: Output,
        stage: PacketStage,
        count: int = 0,
        captures: NodeCaptures | None = None,
        horizon: Horizon | None = None,
        findings: ClusterFindings | None = None,
    ) -> None:
        self._findings = findings
        self._captures, self._waits = captures, horizon is not None
        self._horizon: Horizon = horizon or JoinHorizon(0)
        self._waiting = deque(commands)
        self._held: set[AgentProcess] = set()
        self._is_recorded = any(each.clock for each in commands)
        self._output, self._stage, self._count = output, stage, count
        self._outputs = NodeOutputs(output)
        self._agents: dict[str, AgentProcess] = {}
        self._ending: list[AgentProcess] = []
        self._offsets: dict[str, tuple[int | None, int]] = {}
        self._shown_offsets: dict[str, int] = {}
        self._probes: set[str] = set()
        self._summarized: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._clock = time.time_ns() - time.monotonic_ns()
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._printed = 0
        self._outcomes: Counter[str] = Counter()
        self._is_ending = False
        self.totals = ClusterTotals()

    def run(self, stop: StopRequest) -> ClusterTotals:
        """Reads all agents until they have ended. stop: request to end them."""
        began = time.monotonic()
        pinger = Worker("pings to the nodes", self._ping_all).start()
        deadline = 0.0  # of the agents' summaries, time.monotonic(); 0 = the run goes on
        try:
            while self._waiting or self._agents:
                self._start_some(bool(deadline))
                self._read_some()
                self._write_packets(self._horizon.read(self._traced_now(), self._now()))
                for agent in tuple(self._held):
                    self._send_credit(agent)
                self._look_at_clocks(deadline)
                if not deadline and (stop.is_requested or self._is_count_reached):
                    deadline = time.monotonic() + END_SECONDS
                    self._stop_all()
                if stop.is_overdue:
                    break
        finally:
            self._is_over.set()
            self._write_packets(self._now() + (1 << 62), is_over=True)
            self._outputs.write_all()
            self._end_all()
            pinger.join(PING_SECONDS)
            self._selector.close()
        summary = self.totals.summary
        summary.seconds = time.monotonic() - began
        summary.not_written += self._outputs.losses()
        self._add_findings(summary)
        if self._count:
            summary.packets, summary.outcomes, summary.joined = self._printed, dict(self._outcomes), 0
        self._outputs.add_lost_events()
        return self.totals

    def clock_of(self, node: str) -> tuple[int | None, int]:
        """Offset and error of a node's clock as they were last known, ns; (None, 0) = not known."""
        return self._offsets.get(node, (None, 0))

    def _now(self) -> int:
        """The client's clock: ns since the epoch, without steps."""
        return time.monotonic_ns() + self._clock

    @property
    def _is_count_reached(self) -> bool:
        return bool(self._count) and self._printed >= self._count

    # ---- agents ----

    def _start_some(self, is_ending: bool) -> None:
        if is_ending:
            self._waiting.clear()
        starting = sum(agent.stream.hello is None for agent in self._agents.values())
        while self._waiting and starting < MOST_STARTING:
            each = self._waiting.popleft()
            try:
                agent = AgentProcess(each.node, each.command, each.clock)
            except OSError as e:
                self._horizon.end(each.node)
                self._fail(each.node, f"{each.command[0]} cannot be started: {e.strerror}")
                continue
            with self._lock:
                self._agents[each.node] = agent
            self._selector.register(agent.output, selectors.EVENT_READ, (agent, self._read_results))
            self._selector.register(agent.errors, selectors.EVENT_READ, (agent, self._read_errors))
            starting += 1

    def _read_some(self) -> None:
        for key, _ in self._selector.select(WAIT_SECONDS):
            agent: AgentProcess
            read: Callable[[AgentProcess, int], None]
            agent, read = key.data
            if self._agents.get(agent.node) is agent:
                read(agent, key.fd)

    def _read_errors(self, agent: AgentProcess, fd: int) -> None:
        data = _read(fd)
        if data:
            agent.add_error(data)
        elif data is not None:
            self._selector.unregister(fd)

    def _read_results(self, agent: AgentProcess, fd: int) -> None:
        data = _read(fd)
        if data is None:
            return
        if not data:
            self._remove(agent)
            return
        agent.last_word, agent.is_silent = time.monotonic(), False
        self.totals.wire_bytes += len(data)
        try:
            for result in agent.stream.feed(data, self._now()):
                self._take(agent, result)
        except MalformedFrame as e:
            self._remove(agent, f"its stream cannot be read: {e}")
            return
        self._send_credit(agent)

    def _send_credit(self, agent: AgentProcess) -> None:
        """Gives credit for what was taken; an agent that is ahead of the others gets it later."""
        if self._horizon.is_ahead(agent.node, self._outputs.waiting(agent.node)):
            self._held.add(agent)
        else:
            self._held.discard(agent)
            agent.send(agent.stream.credit())

    def _remove(self, agent: AgentProcess, problem: str = "") -> None:
        """An agent has ended, or is given up."""
        for fd in (agent.output, agent.errors):
            if fd in self._selector.get_map():
                if fd == agent.errors and not problem:
                    _read_rest(agent)
                self._selector.unregister(fd)
        with self._lock:
            self._agents.pop(agent.node, None)
        self._held.discard(agent)
        self._horizon.end(agent.node)
        agent.close()
        self._ending.append(agent)
        if self._findings:
            self._findings.context.nodes.close(agent.node)
        if problem or not self._is_good(agent):
            self._fail(agent.node, problem or agent.problem())
        self._outputs.later(agent.node, lambda: self._outputs.end_batch(agent.node, time.monotonic_ns()))

    def _is_good(self, agent: AgentProcess) -> bool:
        """Whether an agent has done all that was asked. After a request to end, its summary is enough."""
        end = agent.stream.end
        if self._is_ending and agent.node in self._summarized:
            return True
        return end is not None and end.status in (STOPPED if self._is_ending else GOOD)

    def _fail(self, node: str, problem: str) -> None:
        self.totals.failed[node] = problem
        if self._is_recorded:
            sentence = f"The capture of {node} is not read{' to its end' * (node in self.totals.traced)}"
        else:
            sentence = f"Node {node} is {'no longer' if node in self.totals.traced else 'not'} traced"
        self._output.note(f"{sentence}: {problem.removesuffix('.')}.")

    def _look_at_clocks(self, deadline: float) -> None:
        """Gives up agents that do not start or end, and says which ones are silent."""
        now = time.monotonic()
        for agent in list(self._agents.values()):
            if deadline and self._is_good(agent):
                self._remove(agent)
            elif deadline and now > deadline:
                self._remove(agent, "it did not end in time, so its summary is missing")
            elif agent.stream.hello is None and now - agent.began > HELLO_SECONDS:
                self._remove(agent, f"its agent has not answered within {HELLO_SECONDS:.0f} s")
            elif now - agent.last_word > SILENCE_SECONDS and not agent.is_silent and agent.stream.hello:
                agent.is_silent = True
                self._output.note(f"Node {agent.node} has said nothing for {SILENCE_SECONDS:.0f} s; the others go on.")

    def _ping_all(self) -> bool:
        """Pings all agents: also while an output holds up the loop, so that no lease expires."""
        with self._lock:
            agents = list(self._agents.values())
        for agent in agents:
            if agent.stream.hello:
                agent.ping(self._now())
        return not self._is_over.wait(PING_SECONDS)

    def _stop_all(self) -> None:
        self._is_ending = True
        for agent in self._agents.values():
            agent.send(agent.stream.stop())

    def _end_all(self) -> None:
        """Ends all kubectl processes, together: none waits for another one."""
        with self._lock:
            agents, self._agents = [*self._ending, *self._agents.values()], {}
        for agent in agents:
            agent.close()
        for end in (AgentProcess.terminate, AgentProcess.kill):
            until = time.monotonic() + LEAVE_SECONDS
            while any(agent.poll() is None for agent in agents) and time.monotonic() < until:
                time.sleep(0.02)
            for agent in agents:
                if agent.poll() is None:
                    end(agent)
        for agent in agents:
            agent.kill()

    # ---- results ----

    def _take(self, agent: AgentProcess, result: Result) -> None:
        node = agent.node
        output, content = self._outputs.of(node), result.content
        match content:
            case Begin():
                if node not in self.totals.traced:
                    self.totals.traced.append(node)
                if self._findings:
                    self._findings.context.nodes.begin(node, agent.stream.clock.begun(self._now()))
                output.begin(content.results, content.options, content.release)
            case Finding():
                self._outputs.later(node, lambda: output.finding(content))
            case HandshakeVerdict():
                self._outputs.later(node, lambda: output.syn(content))
            case Timeline() if result.kind is FrameKind.TIMELINE:
                self._outputs.later(node, lambda: output.timeline(content))
            case Timeline():
                self._outputs.later(node, lambda: output.connection(content))
            case Loss():
                self._note_loss(agent, content.since, content.until)
                loss = self._known_loss(content)
                self._outputs.later(node, lambda: output.lost(loss))
            case Shed():
                self._shed(agent, content)
            case Note():
                output.note(content.text)
            case BatchEnd():
                self._advance(agent, content.now)
                self._outputs.later(node, lambda: self._outputs.end_batch(node, content.now))
            case RunSummary() if node not in self._summarized:
                self._summarized.add(node)
                add_summary(self.totals.summary, content)
                if self._findings:
                    self._findings.context.nodes.end(node, not content.unexplained and not content.unaddressed)
                self._outputs.later(node, lambda: output.node_summary(content))
            case bytes() if self._captures:
                self._captures.feed(node, content, *agent.stream.clock.read(self._now()))
            case Packet():
                self._offsets[node] = offset, error = agent.stream.clock.of_packet(content.time)
                self._show_clock(node, offset, error)
                self._stage.feed(NodeView(node, content, offset, error))
                self._outputs.feed(node)
                if not self._waits:
                    self._write_packets(self._now())

    def _show_clock(self, node: str, offset: int | None, error: int) -> None:
        """Shows times of a node in the reference clock. The shown offset changes only by more than its error, or 1 ms: the
        lines of one node then do not jump by the error of each measurement.
        """
        if offset is not None and abs(offset - self._shown_offsets.get(node, 0)) > max(error, 1_000_000):
            self._shown_offsets[node] = offset
            self._outputs.of(node).set_node_clock(offset)

    def _traced_now(self) -> list[str]:
        """The nodes of which packets can still come."""
        return [node for node in self.totals.traced if node in self._agents]

    def _advance(self, agent: AgentProcess, until: int) -> None:
        """An agent has sent all packets up to a time, ns, CLOCK_MONOTONIC of its node."""
        shift, error = agent.stream.clock.shift(until)
        if shift is not None:
            reached = until + shift - error
            self._horizon.advance(agent.node, reached)
            if self._findings:
                self._findings.context.nodes.advance(agent.node, reached)

    def _note_loss(self, agent: AgentProcess, since: int, until: int) -> None:
        """Informs the stage; since, until: the node's CLOCK_MONOTONIC, ns, 0 = not known."""
        clock, began, end = agent.stream.clock, 0, self._now()
        (first, first_error), (last, last_error) = clock.shift(since), clock.shift(until)
        if since and first is not None:
            began = since + first - first_error
        if until and last is not None:
            end = until + last + last_error
        self._stage.note_loss(agent.node, began, end)
        if self._findings:
            self._findings.context.nodes.note_loss(agent.node, began, end)

    def _known_loss(self, loss: Loss) -> Loss:
        """The loss; if the nodes name more probes than there are, one of no known probe."""
        if loss.probe in self._probes or len(self._probes) < MOST_PROBES:
            self._probes.add(loss.probe)
            return loss
        return replace(loss, probe="any", why="the nodes name too many probes")

    def _shed(self, agent: AgentProcess, shed: Shed) -> None:
        """A node did not send all."""
        self._outputs.not_sent(agent.node, shed.frames)
        self._note_loss(agent, shed.since, shed.until)

    def _write_packets(self, horizon: int, is_over: bool = False) -> None:
        for joined in self._stage.take(horizon):
            if self._is_count_reached:
                return
            self._printed += 1
            self._outcomes[joined.views[-1].packet.outcome] += 1
            self.totals.summary.joined += len(set(joined.nodes)) > 1
            self._write(joined)
            if self._findings:
                self._findings.look(joined)
        if self._findings and not self._is_count_reached:
            for node, finding in self._findings.close() if is_over else self._findings.take(horizon):
                self._outputs.later(node, partial(self._outputs.of(node).finding, finding))
                self._outputs.later(node, partial(self._outputs.end_batch, node, time.monotonic_ns()))

    def _add_findings(self, summary: RunSummary) -> None:
        """Adds what several nodes together showed, and says what could not be decided."""
        if not self._findings:
            return
        summary.findings = sorted((*summary.findings, *self._findings.all), key=lambda each: not each.certain)
        if undecided := self._findings.undecided:
            total = undecided.total()
            reasons = "; ".join(f"{why} ({number})" for why, number in undecided.most_common())
            self._output.note(
                f"{total} packet{'s' if total != 1 else ''} left for another traced node, and it is not known whether"
                f" {'they' if total != 1 else 'it'} came there: {reasons}."
            )

    def _write(self, joined: JoinedPacket) -> None:
        """Writes a packet: one that no other node can have seen as a result of its node."""
        if joined.links:
            self._output.joined(joined)
        for view in joined.views:
            if not joined.links:
                self._outputs.begin_batch(view.node)
                self._outputs.of(view.node).packet(view.packet)
            self._outputs.written(view.node)


GOOD = frozenset({0})
"""Exit statuses of an agent that has run to its end."""
STOPPED = GOOD | {130}
"""Those of an agent that was stopped; 130: it read a capture."""


def _read(fd: int) -> bytes | None:
    """The next bytes of a pipe; empty at its end, None = there are none yet."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _read_rest(agent: AgentProcess) -> None:
    """Reads what standard error has left: it says why the program has ended."""
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        data = _read(agent.errors)
        if data:
            agent.add_error(data)
        elif data is None:
            time.sleep(0.01)
        else:
            return
