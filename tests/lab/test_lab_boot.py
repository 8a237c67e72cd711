# SPDX-License-Identifier: Apache-2.0
"""A run from boot to end, with a fake QEMU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lab import boot, cli, kernelimage, kernels
from lab.qemu import Accel
from tests.support.waiting import PATIENCE

FAKE_QEMU = """\
#!{python}
import os, sys, time
fds = [int(value.split(",")[0][3:]) for name, value in zip(sys.argv, sys.argv[1:]) if name == "-add-fd"]
status, out, err = fds
console = next(value.split("path=")[1] for value in sys.argv if value.startswith("file,id=console"))
initrd = open(sys.argv[sys.argv.index("-initrd") + 1], "rb").read()
{body}
"""


def run_fake(body: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch, timeout: float | None = PATIENCE) -> boot.Outcome:
    """A run in which `body` (Python) replaces the virtual machine."""
    kernel = kernels.find("6.1")
    image = kernelimage.image(kernel).path
    image.mkdir(parents=True)
    (image / kernelimage.INITRD).write_bytes(b"the image's initrd")
    programs = own_cache / "programs"
    programs.mkdir()
    fake = programs / "qemu-system-x86_64"
    fake.write_text(FAKE_QEMU.format(python=sys.executable, body=body))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(own_cache))
    monkeypatch.setattr("tempfile.tempdir", None)
    outcome = boot.run(boot.Request(kernel, ("echo", "hello"), Accel("tcg", 1), timeout=timeout))
    assert not list(own_cache.glob("k8snet-lab-*")), "the scratch directory is still there"
    return outcome


def test_output_and_status_pass_through(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    body = """
assert initrd.startswith(b"the image's initrd") and b"exec echo hello" in initrd
os.write(status, b"boot 3.5\\n")
for _ in range(300): os.write(out, b"o" * 10_000)
os.write(err, b"e" * 5000)
os.write(status, b"status 7\\n")
os.write(out, b"end")      # still in the guest's pipe when the command ended
os.write(status, b"done\\n")
time.sleep(3600)           # powering off takes long: the runner does not wait for it
"""
    outcome = run_fake(body, own_cache, monkeypatch)
    assert (outcome.status, outcome.booted, outcome.problem) == (7, 3.5, "")
    out, err = capfdbinary.readouterr()
    assert out == b"o" * 3_000_000 + b"end"
    assert err == b"e" * 5000


def test_a_run_ends_after_its_timeout(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "os.write(status, b'boot 1\\n')\nwhile True: os.write(out, b'.'); time.sleep(0.01)"
    outcome = run_fake(body, own_cache, monkeypatch, timeout=0.7)
    assert outcome.status == boot.TIMED_OUT == 124
    assert "0.7 s" in outcome.problem


def test_a_dead_machine_shows_its_console(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "open(console, 'w').write('Kernel panic'); sys.stderr.write('no memory'); sys.exit(1)"
    outcome = run_fake(body, own_cache, monkeypatch)
    assert outcome.status == boot.VM_DIED == 125
    assert outcome.booted is None
    assert "Kernel panic" in outcome.problem
    assert "no memory" in outcome.problem


DIED = (None, boot.VM_DIED)


ENDED = (3.5, 7)


@pytest.mark.parametrize(
    ("ways", "boots"), [((ENDED,), 1), ((DIED, ENDED), 2), ((DIED,) * 3, 3), (((3.5, boot.VM_DIED),), 1), (((None, 124),), 1)]
)
def test_only_a_machine_that_died_in_boot_is_booted_again(
    monkeypatch: pytest.MonkeyPatch, ways: tuple[tuple[float | None, int], ...], boots: int
) -> None:
    left = [boot.Outcome(status, booted, 1.0) for booted, status in ways]
    requests = []

    def run(request: boot.Request) -> boot.Outcome:
        requests.append(request)
        return left.pop(0)

    monkeypatch.setattr(boot, "run", run)
    request = boot.Request(kernels.find("6.1"), ("true",), Accel("tcg", 1))
    assert cli.run(request).status == ways[-1][1]
    assert requests == [request] * boots
