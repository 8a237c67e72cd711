"""Captures of the real command: what was printed live is printed again, and whatever happened to the writer, it reads back."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenes import topology, traffic
from tests.kernel.conftest import ROOT
from tests.kernel.test_command import COMMAND, ENVIRONMENT, start, wait_until_ready

pytestmark = pytest.mark.thorough

PORTS = ("--port", str(traffic.NODEPORT_HTTP), "--port", str(traffic.NODEPORT_LONELY), "--no-kube")
SMALL = "300k"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def ask() -> None:
    for _ in range(2):
        assert traffic.http_get().outcome == "answered"
    assert traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY).outcome == "refused"


def read(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command on a capture, as nobody where the file lets him; and without a kernel: /sys is hidden from it."""
    command = [sys.executable, "-m", "tracer", "-r", str(path), *options]
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys && exec setpriv --reuid 65534 --clear-groups "$@"', "sh"]
    return subprocess.run([*hidden, *command], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)


def open_to_all(*paths: Path) -> None:
    for path in paths:
        for parent in path.parents:
            if parent != Path("/") and parent.is_relative_to("/tmp"):
                parent.chmod(0o755)
        path.chmod(0o644)


def test_captures_of_the_command(node: None, tmp_path: Path, full_disk: Path) -> None:
    """Three at once, for compiling takes long here: one that ends well, one that is killed, one whose disk is full."""
    well, killed, full = tmp_path / "well.k8st", tmp_path / "killed.k8st", full_disk / "full.k8st"
    out = (tmp_path / "out").open("w+")
    first = start(tmp_path / "a", *PORTS, "-w", str(well), stdout=out.fileno())
    second = subprocess.Popen(
        [*COMMAND, "record", "--ready-file", str(tmp_path / "b"), *PORTS, str(killed)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=ROOT,
    )  # fmt: skip
    third = start(tmp_path / "c", "--no-kube", "-w", str(full), stdout=subprocess.DEVNULL)
    for process, name in ((first, "a"), (second, "b"), (third, "c")):
        wait_until_ready(process, tmp_path / name)
    ask()
    time.sleep(3)
    second.send_signal(signal.SIGKILL)
    second.wait(30)
    assert stat.S_IMODE(well.stat().st_mode) == 0o600
    for _ in range(12):
        ask()
        time.sleep(0.5)
    time.sleep(2)
    ends = {}
    for process in (first, third):
        process.send_signal(signal.SIGINT)
        ends[process.pid] = process.communicate(timeout=120)[1]
        assert process.returncode == 0, ends[process.pid]

    open_to_all(well, killed, full)
    again = read(well)
    assert again.returncode == 0, again.stderr
    assert (again.stdout, again.stderr) == (Path(out.name).read_text(), ends[first.pid])
    assert "DNAT" in again.stdout and "REJECTED in filter/INPUT" in again.stdout

    after = read(killed)
    assert after.returncode == 0, after.stderr
    assert "did not end as it should" in after.stderr
    assert "DNAT" in after.stdout and "Service default/http-proxy" in after.stdout and "scene-pod-" in after.stdout

    assert "Tracing goes on" in ends[third.pid], ends[third.pid]
    rest = read(full)
    assert rest.returncode in (0, 23), rest.stderr
    assert "packets" in rest.stdout and len(rest.stderr.strip().splitlines()) <= 4, rest.stderr
