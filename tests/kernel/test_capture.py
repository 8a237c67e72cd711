"""Captures of the running probes: what was printed is printed again, and whatever happened to the writer, it reads back."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pytest

from scenes import topology, traffic
from scenes.netns import entered
from tests.kernel import pcap
from tests.kernel.conftest import ROOT
from tests.kernel.recorder import Recorded, Recorder
from tests.kernel.test_command import ENVIRONMENT
from tests.kernel.watching import NOTHING, Watch
from tests.test_capture_redacted import everything
from tracer.capture import again, writer
from tracer.capture.files import Sizes
from tracer.capture.redacted import Redacted
from tracer.capture.series import opened
from tracer.filters import Filter
from tracer.kernel.session import Kernel, Session
from tracer.model import Packet
from tracer.render.text import Text
from tracer.stop import Stop

pytestmark = pytest.mark.thorough

WANTED = Filter(ports=(traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY))
SMALL, BALLAST, RING = 250_000, 150_000, 160_000
SNAPLEN = 700
WRITES, SLOW_ROOM = 2, 100_000
PATIENCE = 60.0
"""Seconds that something may take on a slow machine."""
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def recorder(watch: Watch, tmp_path: Path) -> Recorder:
    return Recorder(watch.kernel, watch.session, tmp_path)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room, and something on it that can be removed."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(place)], check=True)
    (place / "ballast").write_bytes(b"\0" * BALLAST)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place on the machine's disk, which takes few writes a second of this process: a commit needs seconds. And less memory
    than there is for what waits for it.

    The cgroup needs memory, too: writeback is charged to who made the page dirty by it.
    """
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    place.chmod(0o755)
    disk = place.stat().st_dev
    (CGROUPS / "cgroup.subtree_control").write_text("+io +memory")
    slow = CGROUPS / "slow"
    slow.mkdir()
    (slow / "io.max").write_text(f"{os.major(disk)}:{os.minor(disk)} wiops={WRITES}")
    (slow / "cgroup.procs").write_text(str(os.getpid()))
    monkeypatch.setattr(writer, "ROOM", SLOW_ROOM)
    yield place
    (CGROUPS / "cgroup.procs").write_text(str(os.getpid()))
    slow.rmdir()
    shutil.rmtree(place)


def ask(times: int = 1) -> None:
    for _ in range(times):
        assert traffic.http_get().outcome == "answered"
        assert traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY).outcome == "refused"


def calmly() -> None:
    """So that the tracer keeps up: in a flood its turns take minutes on an emulated machine, and nothing is written in one."""
    ask()
    time.sleep(0.5)


def until(words: str, path: Path, meanwhile: Callable[[], object]) -> None:
    """Does something again and again until the words are in the file."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not (path.exists() and words in path.read_text()):
        meanwhile()


def read(*files: Path) -> subprocess.CompletedProcess[str]:
    """The command on a capture: as nobody, and without a kernel to ask, for /sys is hidden from it."""
    for path in files:
        for own in (path, *path.parent.glob(f"{path.name}-journal")):
            own.chmod(0o644)
        for parent in path.parents:
            if parent != Path("/tmp") and parent.is_relative_to("/tmp"):
                parent.chmod(0o755)
    command = [sys.executable, "-m", "tracer", *(word for path in files for word in ("-r", str(path)))]
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys && exec setpriv --reuid 65534 --clear-groups "$@"', "sh"]
    return subprocess.run([*hidden, *command], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)


def same(made: Recorded) -> None:
    """What is printed is what was printed, in each of both files."""
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.files} == {0o600}
    done = read(*made.files)
    assert (done.returncode, done.stdout, done.stderr) == (0, made.text.read_text(), made.said.read_text())


def test_live_output_is_printed_again(recorder: Recorder) -> None:
    made = recorder("plain", lambda: ask(2), WANTED)
    same(made)
    text = made.text.read_text()
    assert "DNAT" in text and "REJECTED in filter/INPUT" in text and "scene-pod-" in text


@pytest.mark.parametrize("sizes", [Sizes(rotate=30_000), Sizes(seconds=1.2)], ids=["size", "time"])
def test_rotated_files_are_one_capture(recorder: Recorder, sizes: Sizes) -> None:
    made = recorder("rotated", lambda: ask(12), WANTED, sizes=sizes)
    assert len(made.files) > 2
    same(made)
    for path in made.files[1:3]:
        alone = read(path)
        assert alone.returncode == 0 and "DNAT" in alone.stdout and "Traceback" not in alone.stderr, alone.stderr


def test_a_ring_keeps_the_last(recorder: Recorder) -> None:
    made = recorder("ring", lambda: ask(40), Filter(), sizes=Sizes(ring=RING))
    (path,) = made.files
    assert path.stat().st_size < 1.5 * RING, "what explains packets stays, and is much of so small a ring"
    done = read(path)
    assert done.returncode == 0, done.stderr
    live, again = made.text.read_text().split("\n\n"), done.stdout.split("\n\n")
    assert len(again) < len(live) and again[-10:-1] == live[-10:-1]
    assert "Service default/http-proxy" in done.stdout, "what explains packets is not forgotten"


def test_killed(recorder: Recorder, tmp_path: Path) -> None:
    """In a process of its own, with these probes."""

    def work() -> None:
        while True:
            calmly()

    child = os.fork()
    if not child:
        with suppress(BaseException):
            recorder("killed", work, WANTED)
        os._exit(1)
    printed = tmp_path / "killed.text"
    until("REJECTED in filter/INPUT", printed, lambda: time.sleep(0.5))
    before = printed.read_text().split("\n\n")[:-1]
    # A chunk is written every second; this machine takes its time.
    time.sleep(4)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    done = read(tmp_path / "killed.k8st")
    assert done.returncode == 0 and "did not end as it should" in done.stderr, done.stderr
    again = done.stdout.split("\n\n")
    print(f"{len(before)} blocks four seconds before the kill, {len(again)} read back")
    assert len(before) >= 6 and again[: len(before)] == before


def test_a_full_disk(recorder: Recorder, full_disk: Path) -> None:
    said_at = recorder.directory / "full.said"

    def work() -> None:
        until("The capture misses events", said_at, calmly)
        ask(3)
        (full_disk / "ballast").unlink()
        until("The capture is being written again", said_at, calmly)
        ask(3)

    made = recorder("full", work, Filter(), place=full_disk)
    said, text = made.said.read_text(), made.text.read_text()
    print(said)
    why = "it could not be written (database or disk is full). Tracing goes on."
    assert said.count("The capture misses events from here on") == 1 and why in said
    again = f"The capture is being written again; {made.lost} events are not in it."
    assert again in said and f"\n{made.lost} events are not in the capture." in said
    done = read(*made.files)
    assert done.returncode == 0 and "did not end" not in done.stderr, done.stderr
    assert f"lost: {made.lost} events of capture: it could not be written" in done.stdout
    assert f"{made.lost} lost ({made.lost} of capture)" in done.stdout, done.stdout[-500:]
    live, replayed = (each.count("REJECTED in filter/INPUT") for each in (text, done.stdout))
    print(f"{live} refused, {replayed} of them in the capture, {made.totals.lost} events lost by the probes")
    assert 3 <= replayed <= live - 3, "what is printed does not depend on the disk"


def test_redacted_while_it_is_written(recorder: Recorder) -> None:
    """Not an address, a name or a rule of this machine is in the file; it is read as any other."""
    made = recorder("redacted", lambda: ask(2), WANTED, redacted=Redacted())
    (path,) = made.files
    done = read(path)
    assert done.returncode == 0 and "DNAT" in done.stdout and "REJECTED in filter/INPUT" in done.stdout, done.stderr
    assert done.stdout.count("=>") == made.text.read_text().count("=>")
    there = everything(path)
    for address in (topology.NODE4, topology.CLIENT4, topology.GATEWAY4, *(pod.addr4 for pod in topology.PODS)):
        assert address.encode() not in there and socket.inet_aton(address) not in there, address
    for word in (b"scene-pod", b"pod-a", b"KUBE-S", b"http-proxy"):
        assert word not in there, word


def send(payload: bytes) -> None:
    """By TCP, to the NodePort; and what comes back is read."""
    with entered(topology.CLIENT), socket.create_connection((topology.NODE4, traffic.NODEPORT_HTTP), 3) as s:
        s.sendall(payload)
        assert s.recv(4096)


def packets_of(path: Path) -> list[Packet]:
    class Kept(Text):
        def packet(self, packet: Packet) -> None:
            found.append(packet)

    found: list[Packet] = []
    with opened([str(path)]) as capture:
        again.replay(capture, Kept(StringIO(), StringIO()), again.Asked(), Stop())
    return found


@pytest.mark.parametrize("way", ["auto", "kprobe"])
def test_bytes_of_packets(node: None, tmp_path: Path, way: str) -> None:
    """--snaplen, with probes of its own."""
    kernel = Kernel.running()
    with Session(kernel, NOTHING, only=way, snaplen=SNAPLEN) as session:
        bytes_are_there(Recorder(kernel, session, tmp_path))


def bytes_are_there(recorder: Recorder) -> None:
    """What tcpdump saw come in, byte for byte but for check sums, and what this machine sent itself."""

    def ask() -> None:
        send(b"GET / HTTP/1.1\r\nX: " + b"x" * 1200 + b"\r\n\r\n")
        assert traffic.udp_ask(question=bytes(range(256)) * 3).outcome == "answered"
        assert traffic.http_get(traffic.CLUSTER_IP_HTTP, 8080, ns=None).outcome == "answered"

    dump = recorder.directory / "client.pcap"
    with pcap.tcpdump(dump, "eth0", topology.CLIENT, f"ip and src host {topology.CLIENT4}", snaplen=0):
        made = recorder("bytes", ask, Filter(ports=(traffic.NODEPORT_HTTP, traffic.NODEPORT_UDP, 8080)))
    same(made)
    found = packets_of(*made.files)
    sent = [data[:SNAPLEN] for data in pcap.raw(dump)]
    seen = [p.raw for p in found if p.endpoints.src == topology.CLIENT4]
    print(f"{len(sent)} sent, {len(seen)} seen, {[len(raw) for raw in seen]} bytes")
    assert len(seen) >= 6 and max(map(len, seen)) == SNAPLEN
    assert sorted(map(pcap.without_sums, seen)) == sorted(map(pcap.without_sums, sent))
    answers = [p for p in found if p.endpoints.src != topology.CLIENT4]
    print(f"{len(answers)} answers: {[(p.endpoints.src, p.tcp_flags, p.length, len(p.raw)) for p in answers]}")
    assert answers and all(len(p.raw) == min(p.length, SNAPLEN) for p in answers)
    assert any(b"HTTP/1." in p.raw[52:] for p in answers), "of what is sent here, the payload lies in another page"


def test_a_slow_disk(recorder: Recorder, slow_disk: Path) -> None:
    said_at = recorder.directory / "slow.said"

    def work() -> None:
        until("The capture misses events", said_at, calmly)
        ask(3)

    began = time.monotonic()
    made = recorder("slow", work, Filter(), place=slow_disk)
    said, text = made.said.read_text(), made.text.read_text()
    print(f"{time.monotonic() - began:.0f} s, {text.count('REJECTED in filter/INPUT')} refused, {made.lost} lost\n{said}")
    assert said.count("The capture misses events from here on: the disk was too slow. Tracing goes on.") == 1
    assert f"\n{made.lost} events are not in the capture." in said and not made.totals.lost, (
        "the probes have lost nothing for it"
    )
    done = read(*made.files)
    assert done.returncode == 0 and "did not end" not in done.stderr, done.stderr
    assert f"{made.lost} lost ({made.lost} of capture)" in done.stdout, done.stdout[-500:]
