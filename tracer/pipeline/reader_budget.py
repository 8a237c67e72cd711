# SPDX-License-Identifier: Apache-2.0
"""Keeps a reader within a budget of processor time and memory: decides how often it reads, how much, and what the probes write.

Nothing is measured here: each reading gives its time, the processor time of the process so far, and its memory. In this order,
over the budget

1. the reader reads less often, up to once in MOST_PAUSE_SECONDS: nothing is lost by that;
2. it explains no more events of a reading than the rest of the budget allows;
3. the probes write no packets that open connections;
4. the probes write nothing.

A step back is made when what the probes leave out now would fit into the budget: else each flood would be met again and again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tracer.model.detail import Detail

WINDOW_SECONDS = 5.0
"""The budget holds for the processor time of each period of this length, s."""
WINDOW_READINGS = 256
"""Most readings of the window that are kept; beyond that it is shorter."""
LEAST_SECONDS = 1.0
"""Shortest period of which a share is computed, and between two steps towards less detail, s."""
PAUSE_SECONDS, MOST_PAUSE_SECONDS, PAUSE_FACTOR = 0.05, 1.0, 1.5
"""Shortest and longest pause between two readings, s, and the factor of one change."""
SAMPLE_PER_SECOND, SAMPLE_EVENTS = 50.0, 200.0
"""Number of events that are explained in any case: in a second, and at once after a quiet time. So something is always
known, and a few requests are read whole."""
FEW_EVENTS = 5
"""Number of events of a reading below which its processor time is that of an idle reader."""
IDLE_READINGS = 20
"""Number of readings over which the processor time of one without events is averaged."""
OUTLIER = 2.0
"""Factor of the average of idle readings above which one does not count whole: reading rules is not idle work."""
FIRST_IDLE = 0.5e-3
"""Processor time of an idle reading, s, before it is known."""
IDLE_SHARE = 0.3
"""Share of the budget above which an idle reader reads less often: the rest is for packets."""
PACKETS_SHARE = 0.25
"""Share of the budget that the packets have in any case: what an idle reader needs cannot be left out."""
DOUBT_SECONDS = 60.0
"""Time in which the cost of an event that was not renewed is halved, s: one that is too high must not last for ever."""
LEAST_COST = 1e-6
"""Least processor time to explain one event, s."""
READING_SHARE = 0.25
"""Share of the rest of the budget that one reading may use, beside that of its own period: what follows in the window is not
all left out."""
MANY_EVENTS = 100
"""Number of events of a reading whose cost of an event counts as much as what was known before."""
FIRST_COST = 500e-6
"""Processor time to explain one event, s, before it is known: ten times what it is on most machines."""
EVENTS_OF_PACKET = 8
"""Events of a packet that opens a connection, for the estimate of what its return would cost."""
MARGIN, DRAINING = 0.9, 1.25
"""Share of the budget that an estimate must be below; and above which draining alone takes too much."""
HOLD_SECONDS, MOST_HOLD_SECONDS, RELAPSE_SECONDS = 5.0, 300.0, 60.0
"""Time before a step back, s; its bound: it doubles with each step that is taken back within RELAPSE_SECONDS."""
MEMORY_SECONDS = 5.0
"""Time between two steps because of memory, s: what is freed does not show at once."""


@dataclass(frozen=True)
class BudgetLimits:
    """What a reader may use.

    Attributes:
        cpu: Share of one processor; 0 = no limit.
        memory: Resident memory, bytes; 0 = no limit.
    """

    cpu: float = 0.0
    memory: int = 0


@dataclass(frozen=True)
class Reading:
    """What is known before a reading of the ring buffer.

    Attributes:
        now: Time, s.
        cpu: Processor time of the process and its children so far, s.
        memory: Resident memory, bytes.
        events: Events that the previous reading explained.
        left_out: Packets that the probes have left out since the previous reading.
        cut: Whether events of the previous reading were left out.
    """

    now: float
    cpu: float
    memory: int = 0
    events: int = 0
    left_out: int = 0
    cut: bool = False


class ReaderBudget:
    """Decides after each reading.

    Attributes:
        detail: What the probes write.
        pause: Time until the next reading, s.
        most_events: Number of events of the next reading that may be explained; None = all.
    """

    def __init__(self, limits: BudgetLimits) -> None:
        self._limits = limits
        self.detail, self.pause = Detail.WHOLE, PAUSE_SECONDS
        self.most_events: int | None = None
        self._window: deque[Reading] = deque(maxlen=WINDOW_READINGS)
        self._changed: Reading | None = None
        self._cost, self._hold = FIRST_COST, HOLD_SECONDS
        self._idle, self._sample = FIRST_IDLE, SAMPLE_EVENTS
        self._stepped_back = self._paused = float("-inf")

    def measure(self, reading: Reading) -> str:
        """Takes a reading. Returns a sentence when the detail changes, else ""."""
        last = self._window[-1] if self._window else reading
        self._changed = self._changed or reading
        self._estimate(reading, last)
        self._window.append(reading)
        while len(self._window) > 2 and self._window[1].now <= reading.now - WINDOW_SECONDS:
            self._window.popleft()
        self._set_pause(reading)
        self._set_most_events(reading)
        return self._step(reading, self._changed)

    def _estimate(self, reading: Reading, last: Reading) -> None:
        """Estimates the processor time of a reading without events, and of one event."""
        seconds, used = reading.now - last.now, reading.cpu - last.cpu
        self._sample = max(0.0, min(SAMPLE_EVENTS, self._sample + seconds * SAMPLE_PER_SECOND) - reading.events)
        if reading.events >= FEW_EVENTS:
            weight = reading.events / (reading.events + MANY_EVENTS)
            self._cost += weight * (max((used - self._idle) / reading.events, LEAST_COST) - self._cost)
        elif not reading.cut:
            self._idle += (min(used, OUTLIER * self._idle) - self._idle) / IDLE_READINGS
            if self.detail:
                self._cost = max(LEAST_COST, self._cost * 0.5 ** (seconds / DOUBT_SECONDS))

    @property
    def _is_heavy(self) -> bool:
        """Whether the memory is above its limit."""
        return bool(self._limits.memory) and self._window[-1].memory > self._limits.memory

    def _share(self, reading: Reading, since: float) -> float:
        """Share of a processor that was used since a time, at most in the window; 0 = not known yet."""
        first = next(each for each in self._window if each.now >= since or each is reading)
        seconds = reading.now - first.now
        return (reading.cpu - first.cpu) / seconds if seconds >= LEAST_SECONDS else 0.0

    def _set_pause(self, reading: Reading) -> None:
        share = self._share(reading, float("-inf"))
        if not self._limits.cpu or not share or reading.now - self._paused < LEAST_SECONDS / 2:
            return
        self._paused = reading.now
        highest, idle, most_idle = self._limits.cpu * MARGIN, self._idle / self.pause, self._limits.cpu * IDLE_SHARE
        if self.detail or share > highest or idle > most_idle:
            self.pause = min(self.pause * PAUSE_FACTOR, MOST_PAUSE_SECONDS)
        elif share * PAUSE_FACTOR < highest and idle * PAUSE_FACTOR < most_idle:
            self.pause = max(self.pause / PAUSE_FACTOR, PAUSE_SECONDS)

    def _set_most_events(self, reading: Reading) -> None:
        self.most_events = None
        if self._limits.cpu:
            seconds = max(WINDOW_SECONDS, reading.now - self._window[0].now)
            left = self._limits.cpu * seconds - (reading.cpu - self._window[0].cpu)
            own = self._limits.cpu * self.pause - self._idle
            usable = min(own, own + left) + READING_SHARE * max(left - own, 0.0)
            self.most_events = max(int(self._sample), int(usable / self._cost))
        if self._is_heavy:
            self.most_events = int(self._sample)

    def _step(self, reading: Reading, changed: Reading) -> str:
        """Changes the detail by one step if it has to be. changed: the reading at the last change."""
        seconds, share = reading.now - changed.now, self._share(reading, changed.now)
        if self._is_heavy:
            return self._to_less(reading, f"{reading.memory / 1e6:.0f} MB") if seconds >= MEMORY_SECONDS else ""
        if seconds < LEAST_SECONDS:
            return ""
        if self._limits.cpu and self._is_exceeded(reading, changed):
            is_cut = reading.cut and self.detail == Detail.WHOLE
            why = "a reading had too many events" if is_cut else f"{100 * share:.1f} % of a processor in the last seconds"
            return self._to_less(reading, why)
        return self._to_more(reading, changed, share) if self.detail and seconds >= self._hold else ""

    def _is_exceeded(self, reading: Reading, changed: Reading) -> bool:
        """Whether less has to be written: what is read is too much, or reading less often was not enough."""
        share = self._share(reading, changed.now)
        if self.detail == Detail.WHOLE:
            return reading.cut or (self.pause >= MOST_PAUSE_SECONDS and share > self._most_share(1.0))
        # What is explained is limited by now: the rest is draining.
        return reading.now - changed.now >= WINDOW_SECONDS and share > self._most_share(DRAINING)

    def _most_share(self, part: float) -> float:
        """A part of the budget, as a share of a processor. A part is left to the packets beside idle work."""
        return max(part * self._limits.cpu, self._idle / self.pause + PACKETS_SHARE * self._limits.cpu)

    def _to_less(self, reading: Reading, why: str) -> str:
        if self.detail == Detail.NOTHING:
            return ""
        is_relapse = reading.now - self._stepped_back < RELAPSE_SECONDS
        self._hold = min(2 * self._hold, MOST_HOLD_SECONDS) if is_relapse else HOLD_SECONDS
        self.detail, self._changed = Detail(self.detail + 1), reading
        what = "openings are no longer written" if self.detail == Detail.FAILURES else "no packet is written any more"
        return f"The budget of {self} is used up ({why}): {what}."

    def _to_more(self, reading: Reading, changed: Reading, share: float) -> str:
        if any(each.cut for each in self._window) or reading.memory > MARGIN * (self._limits.memory or reading.memory * 2):
            return ""
        first = next(each for each in self._window if each.now >= changed.now or each is reading)
        left_out = sum(each.left_out for each in self._window if each.now > first.now)
        rate = left_out / max(reading.now - first.now, LEAST_SECONDS)
        if self._limits.cpu and share + rate * EVENTS_OF_PACKET * self._cost > self._most_share(MARGIN):
            return ""
        self.detail, self._changed, self._stepped_back = Detail(self.detail - 1), reading, reading.now
        what = "failures" if self.detail == Detail.FAILURES else "openings"
        return f"The budget of {self} is kept again: {what} are written again."

    def __str__(self) -> str:
        cpu = [f"{100 * self._limits.cpu:g} % of a processor"] if self._limits.cpu else []
        return " and ".join([*cpu, *([f"{self._limits.memory / 1e6:g} MB"] if self._limits.memory else [])])
