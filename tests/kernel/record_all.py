"""Records every incident and some scenes, with what was printed beside each; in the lab, as root, for tests/replay_check.py.

    python3 tests/kernel/record_all.py DIRECTORY [--backends legacy,nft] [--only WORDS] [--missing]

For NAME there are NAME.k8st, NAME.text and NAME.json. Probes are compiled once; each run is wired as the command wires it.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

import incidents  # noqa: E402
from scenes import rules, scene, topology, traffic  # noqa: E402
from tests.kernel import incident_runs  # noqa: E402
from tests.kernel.truth import legacy  # noqa: E402
from tracer import doctor  # noqa: E402
from tracer.capture.files import Sizes  # noqa: E402
from tracer.capture.recording import Recording  # noqa: E402
from tracer.facts import Fact  # noqa: E402
from tracer.filters import Filter  # noqa: E402
from tracer.findings.model import Finding  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402
from tracer.kube.live import Kube, Source  # noqa: E402
from tracer.kube.wanted import Words  # noqa: E402
from tracer.main import Job, missed, prepare  # noqa: E402
from tracer.model import Packet, Totals  # noqa: E402
from tracer.render.base import Lost, Output  # noqa: E402
from tracer.render.json import Json  # noqa: E402
from tracer.render.text import Text  # noqa: E402
from tracer.run import Stop  # noqa: E402

SETTLE = 0.8


class Both(Output):
    """Text and JSON of one run."""

    def __init__(self, text: Output, json: Output) -> None:
        super().__init__()
        self._text, self._json = text, json

    def begin_as(self, few: Sequence[Fact], full: Sequence[Fact], said: str, release: str) -> None:
        self._text.begin(few, said, release)
        self._json.begin(full, said, release)

    def begin(self, facts: Sequence[Fact], options_text: str, release: str = "") -> None: ...

    def packet(self, packet: Packet) -> None:
        self._text.packet(packet)
        self._json.packet(packet)

    def lost(self, loss: Lost) -> None:
        self._text.lost(loss)
        self._json.lost(loss)

    def finding(self, finding: Finding) -> None:
        self._text.finding(finding)
        self._json.finding(finding)

    def summary(self, totals: Totals) -> None:
        self._text.summary(totals)
        self._json.summary(totals)

    def doctor(self, facts: Sequence[Fact], status: int) -> None: ...

    def note(self, text: str) -> None: ...


class Asked(Stop):
    """A stop without signals."""

    def __init__(self) -> None:
        self.asked = False


class Recorder:
    """The running probes, and the means to record what somebody does under them."""

    def __init__(self, kernel: Kernel, session: Session, directory: Path) -> None:
        self.kernel, self.session, self.directory = kernel, session, directory
        self.full = doctor.gather()

    def __call__(self, name: str, work: Callable[[], object], wanted: Filter, objects: str = "") -> None:
        """Records what happens while `work` runs."""
        for old in self.directory.glob(f"{name}.*"):
            old.unlink()
        parts, job = Recording(str(self.directory / f"{name}.k8st"), Sizes()), Job(said=name)
        with ExitStack() as stack:
            stack.callback(parts.close)
            text, json = (stack.enter_context((self.directory / f"{name}.{form}").open("w")) for form in ("text", "json"))
            output = Both(Text(text, text), Json(json, json))
            kube = stack.enter_context(Kube(Source(objects, none=not objects, known=parts.known), Words(), wanted))
            self.session.drain()
            self.session.losses()
            self.session.set_filter(kube.filter())
            run = prepare(stack, self.kernel, self.session, kube, parts, output, job, self.full)
            output.begin_as(missed(self.session.refused), self.full, job.said, self.kernel.release)
            stop = Asked()

            def meanwhile() -> None:
                try:
                    work()
                    time.sleep(SETTLE)
                finally:
                    stop.asked = True

            thread = threading.Thread(target=meanwhile)
            thread.start()
            run.follow(stop)
            thread.join()
            parts.close(run.totals.seconds)
            output.summary(run.totals)
        totals = run.totals
        print(f"{name}: {totals.packets} packets, {totals.events} events, {totals.lost} lost", flush=True)


Case = tuple[str, Callable[[Recorder], None]]


def incident_cases(backends: Sequence[str]) -> Iterator[Case]:
    for backend in backends:
        for incident in incidents.every():
            for state in incident.states_in(backend):
                yield f"{incident.finding}-{state}-{backend}", _incident(incident, state, backend)


def _incident(incident: incidents.Incident, state: str, backend: str) -> Callable[[Recorder], None]:
    def record(recorder: Recorder) -> None:
        incident.up(state, "nft" if backend == "nft" else "legacy")
        name = f"{incident.finding}-{state}-{backend}"
        recorder(name, lambda: incident.traffic(state), Filter(ports=incident.ports), str(incidents.OBJECTS))

    return record


def scene_cases(backends: Sequence[str]) -> Iterator[Case]:
    for backend in backends:
        yield f"scene-requests-{backend}", _requests(backend)
        yield f"scene-rules-change-{backend}", _changing(backend)


def _up(backend: str) -> None:
    incidents.down()
    scene.up(backend="nft" if backend == "nft" else "legacy")


def _requests(backend: str) -> Callable[[Recorder], None]:
    """TCP, UDP, IPv6, a refused one, and one from the node: every packet of the machine, with no filter."""

    def ask() -> None:
        for _ in range(3):
            traffic.http_get()
        traffic.udp_ask()
        traffic.http_get(topology.NODE6)
        traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY)
        traffic.http_get(traffic.CLUSTER_IP_HTTP, 8080, ns=None)

    def record(recorder: Recorder) -> None:
        _up(backend)
        recorder(f"scene-requests-{backend}", ask, Filter())

    return record


def _changing(backend: str) -> Callable[[Recorder], None]:
    """Rules that are replaced while requests come."""
    kind: rules.Backend = "nft" if backend == "nft" else "legacy"

    def ask() -> None:
        for _ in range(4):
            traffic.http_get()
            rules.restore("http-proxy", backend=kind)
            traffic.udp_ask()
            time.sleep(0.3)

    def record(recorder: Recorder) -> None:
        _up(backend)
        recorder(f"scene-rules-change-{backend}", ask, Filter(ports=(traffic.NODEPORT_HTTP, traffic.NODEPORT_UDP)))

    return record


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--backends", default="legacy,nft", help="of iptables, separated by commas")
    parser.add_argument("--only", default="", metavar="WORDS", help="cases whose name has these words in it")
    parser.add_argument("--missing", action="store_true", help="go on where a run before this one was ended")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    legacy.load_modules()
    incident_runs.load_modules()
    kernel, backends = Kernel.running(), given.backends.split(",")
    try:
        with scene.scene(), Session(kernel, Filter(ports=(1,))) as session:
            recorder = Recorder(kernel, session, given.directory)
            for name, record in (*scene_cases(backends), *incident_cases(backends)):
                done = given.missing and (given.directory / f"{name}.done").exists()
                if given.only in name and not done:
                    record(recorder)
                    (given.directory / f"{name}.done").touch()
    finally:
        incidents.down()
        for made in given.directory.iterdir():
            made.chmod(0o644)
    return 0


if __name__ == "__main__":
    sys.exit(main())
