# SPDX-License-Identifier: Apache-2.0
"""A run on invented probes: how it ends, in which thread, and the results that it reports as not available."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import captures
from tests.support.ctnetlink import FakeConntrack
from tracer.capture.change_events import RecordedConntrackListener
from tracer.capture.record.capture_files import RotationLimits
from tracer.commands import trace
from tracer.commands.start_notes import StartNotes
from tracer.kernel.attach_plan import UnavailableProbe
from tracer.kernel.probes import PROBES
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.model.check import CheckResult
from tracer.model.filter import Filter
from tracer.packets.joined_views import first_packet
from tracer.pipeline.shutdown import StopRequest
from tracer.ui.feed import ScreenFeed
from tracer.util.status_line import StatusLine

NAT, RULE, IPVS = (next(p for p in PROBES if p.name == name) for name in ("nat", "nft_rule", "ipvs_nat4"))


def test_refused_probes_correct_the_check_results() -> None:
    full = [
        CheckResult("kernel", "ok", "Linux"),
        CheckResult("probe nat", "ok", "by fentry"),
        CheckResult("probe nft_rule", "missing", "no BTF", 1),
    ]
    refused = [
        UnavailableProbe(NAT, "the kernel refused it (EPERM)"),
        UnavailableProbe(RULE, "no BTF"),
        UnavailableProbe(IPVS, "ip_vs is not loaded"),
    ]
    corrected = CheckResult("probe nat", "degraded", f"no {NAT.shows}: the kernel refused it (EPERM)")
    assert trace.corrected(full, refused) == [full[0], corrected, full[2]]
    assert [fact.subject for fact in trace.unavailable_probes(refused)] == ["nat", "nft_rule"]


class AttachedProbes(captures.Probes):
    """A session of probes that ends the run with Ctrl-C after its last batch. is_attached: False after its block."""

    refused: tuple[UnavailableProbe, ...] = ()
    is_attached = False

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(captures.some_batches(20), lambda: os.kill(os.getpid(), signal.SIGINT))

    def __enter__(self) -> AttachedProbes:
        AttachedProbes.is_attached = True
        return self

    def __exit__(self, *error: object) -> None:
        AttachedProbes.is_attached = False


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Runs `trace` on invented probes; arguments: those of `trace` that differ."""
    machines: list[captures.Machine] = []

    def recording(target: str, *_: object, explains: bool, **_more: object) -> captures.Machine:
        machines.append(captures.Machine(target, RotationLimits(), None, explains))
        machines[0].conntrack = RecordedConntrackListener(machines[0].buffer, FakeConntrack(why="so"))
        return machines[0]

    def kube(*_: object) -> OwnerResolver:
        return OwnerResolver(ObjectSource(none=True, known=machines[0].cluster_view), Selectors(), Filter())

    kernel = SimpleNamespace(**vars(captures.RUNNING), free=lambda: None)
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    monkeypatch.setattr(trace, "_recording", recording)
    monkeypatch.setattr(trace, "_kube", kube)
    monkeypatch.setattr(trace, "Session", AttachedProbes)
    monkeypatch.setattr("tracer.commands.trace.Kernel.running", lambda: kernel)
    monkeypatch.setattr("tracer.commands.trace.doctor.gather", lambda **_: [])
    monkeypatch.setattr(trace, "limitations", lambda session: [])
    for name in ("require_tracing", "give_up"):
        monkeypatch.setattr(trace, name, lambda *_: None)

    def run(**arguments: Any) -> int:
        no_options: dict[str, Any] = {"verbose": False, "attach": "auto", "count": 0, "duration": 0, "ready_file": None}
        no_options["target"] = str(tmp_path / "a.k8st")
        return trace.trace((), outputs=(), notes=StartNotes(StatusLine(is_wanted=False)), **no_options | arguments)

    return run


def test_a_run_in_another_thread_releases_everything_there(traced: Callable[..., int], tmp_path: Path) -> None:
    """As `ui` does it: the request to end reaches it, the probes are removed before it returns, the capture is complete."""
    feed, threads, before = ScreenFeed(), [], signal.getsignal(signal.SIGINT)

    def drive(complete: Callable[[], int], stop: StopRequest) -> int:
        assert AttachedProbes.is_attached and not stop.is_requested

        def run() -> None:
            threads.append((complete(), stop.is_requested, AttachedProbes.is_attached))

        worker = threading.Thread(target=run)
        worker.start()
        worker.join()
        return threads[0][0]

    assert traced(view=nullcontext(feed), drive=drive, numbers_connections=True) == 0
    assert threads == [(0, True, False)] and signal.getsignal(signal.SIGINT) == before
    assert (
        feed.totals
        and feed.totals.packets == feed.counts.packets == 20
        and all(first_packet(p).connection for p in feed.packets)
    )
    assert captures.read(tmp_path / "a.k8st")[0].packets == 20


@pytest.mark.parametrize("method", ["begin", "packet", "summary"])
def test_an_error_of_the_output_removes_the_probes(traced: Callable[..., int], method: str) -> None:
    feed, before = ScreenFeed(), signal.getsignal(signal.SIGINT)

    def fails(*_: object) -> None:
        raise OSError("no room")

    setattr(feed, method, fails)
    with pytest.raises(OSError, match="no room"):
        traced(view=nullcontext(feed))
    assert not AttachedProbes.is_attached and signal.getsignal(signal.SIGINT) == before
