"""Captures of the running probes: what was printed is printed again, and whatever happened to the writer, it reads back."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
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
from tracer.run import Stop

pytestmark = pytest.mark.thorough

WANTED = Filter(ports=(traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY))
SMALL, BALLAST, RING = 250_000, 150_000, 160_000
SNAPLEN = 700
SLOW = Path("/sys/kernel/config/nullb/slow")


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
def slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk that needs 0.2 s for everything that is asked of it; and less memory than there is for what waits for it."""
    subprocess.run(["modprobe", "null_blk", "nr_devices=0"], check=True)
    subprocess.run("mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config", shell=True, check=True)
    place = tmp_path / "slow"
    place.mkdir()
    SLOW.mkdir()
    for name, value in {"memory_backed": 1, "size": 32, "irqmode": 2, "completion_nsec": 0, "power": 1}.items():
        (SLOW / name).write_text(str(value))
    (device,) = Path("/sys/block").glob("nullb*")
    subprocess.run(["mkfs.ext4", "-q", f"/dev/{device.name}"], check=True)
    (SLOW / "power").write_text("0")
    (SLOW / "completion_nsec").write_text("200000000")
    (SLOW / "power").write_text("1")
    subprocess.run(["mount", f"/dev/{device.name}", str(place)], check=True)
    monkeypatch.setattr(writer, "ROOM", 100_000)
    yield place
    subprocess.run(["umount", str(place)], check=True)
    SLOW.rmdir()


def ask(times: int = 1) -> None:
    for _ in range(times):
        assert traffic.http_get().outcome == "answered"
        assert traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY).outcome == "refused"


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
    asked = tmp_path / "asked"

    def work() -> None:
        ask(3)
        asked.touch()
        ask(1000)

    child = os.fork()
    if not child:
        with suppress(BaseException):
            recorder("killed", work, WANTED)
        os._exit(1)
    until = time.monotonic() + 60
    while not asked.exists() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(2.5)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    done = read(tmp_path / "killed.k8st")
    assert done.returncode == 0 and "did not end as it should" in done.stderr, done.stderr
    live, again = (tmp_path / "killed.text").read_text().split("\n\n"), done.stdout.split("\n\n")
    # What came in the last second may be missing, and what was under way then has another end.
    sure = len(live) * 2 // 3
    assert sure >= 6 and again[:sure] == live[:sure]


def test_a_full_disk(recorder: Recorder, full_disk: Path) -> None:
    def work() -> None:
        ask(25)
        (full_disk / "ballast").unlink()
        ask(5)

    made = recorder("full", work, Filter(), place=full_disk)
    said, text = made.said.read_text(), made.text.read_text()
    assert "The capture misses events from here on: it could not be written" in said and "Tracing goes on." in said
    assert "The capture is being written again" in said and f"{made.lost} events are not in the capture." in said
    assert text.count("REJECTED in filter/INPUT") >= 20, "what is printed does not depend on the disk"
    done = read(*made.files)
    assert done.returncode == 0, done.stderr
    assert f"{made.lost} lost ({made.lost} of capture)" in done.stdout, done.stdout[-500:]
    assert done.stdout.count("REJECTED in filter/INPUT") >= 2


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
    made = recorder("slow", lambda: ask(20), Filter(), place=slow_disk)
    said, text = made.said.read_text(), made.text.read_text()
    assert "The capture misses events from here on: the disk was too slow. Tracing goes on." in said
    assert text.count("REJECTED in filter/INPUT") >= 20 and not made.totals.lost, "the probes have lost nothing for it"
    done = read(*made.files)
    assert done.returncode == 0, done.stderr
    assert f"{made.lost} lost ({made.lost} of capture)" in done.stdout, done.stdout[-500:]
