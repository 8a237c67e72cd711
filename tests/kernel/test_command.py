# SPDX-License-Identifier: Apache-2.0
"""The command itself: how it ends, that it leaves nothing behind, and its messages for bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from scenes import topology, traffic
from tests.kernel.conftest import ROOT
from tests.kernel.untouched import settled, state

COMMAND = [sys.executable, "-m", "tracer"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": "/tmp/k8snet-trace-pycache"}
START_SECONDS = 600
END_SECONDS = 120
ASK = [sys.executable, "-c", (
    "import sys; sys.path.insert(0, 'vagrant'); from scenes import traffic;"
    "traffic.http_get(); traffic.tcp_connect(traffic.NODE4, traffic.NODEPORT_LONELY)"
)]  # fmt: skip


def start(ready: Path, *options: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Starts the command. Its probes are attached once `ready` exists."""
    return subprocess.Popen(
        [*COMMAND, "--ready-file", str(ready), *options],
        stdout=stdout, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=ROOT,
    )  # fmt: skip


def wait_until_ready(process: subprocess.Popen[str], ready: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert int(ready.read_text()) == process.pid


@pytest.mark.matrix
def test_json_output_with_a_command(node: None, tmp_path: Path) -> None:
    """The JSON is valid by the schema, a replay of the capture prints the same, and nothing stays in the kernel."""
    before, capture = state(), tmp_path / "a.k8st"
    ports = ["--port", str(traffic.NODEPORT_HTTP), "--port", str(traffic.NODEPORT_LONELY)]
    options = ["-o", "json", "-w", str(capture), *ports, "--", *ASK]
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)
    assert done.returncode == 10, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    schema = Draft202012Validator(json.loads((ROOT / "tracer/render/schema.json").read_text()))
    for line in lines:
        schema.validate(line)
    assert [lines[0]["type"], lines[-1]["type"]] == ["run", "summary"]
    packets = [line for line in lines if line["type"] == "packet"]
    assert len(packets) == lines[-1]["packets"] >= 10
    lonely = [p for p in packets if p.get("dport") == traffic.NODEPORT_LONELY]
    assert [p["verdict"] for p in lonely] == ["REJECTED in filter/INPUT with icmp-port-unreachable"]
    first = packets[0]
    assert first["dport"] == traffic.NODEPORT_HTTP and first["flow"]["ct_state"] == "NEW"
    assert all(p["complete"] for p in packets) or lines[-1]["lost"], "packets are incomplete only where events were lost"
    assert [h["nat"]["kind"] for h in first["hops"] if "nat" in h] == ["DNAT", "MASQUERADE"]
    assert {f["subject"] for f in lines[0]["facts"]} >= {"kernel", "BTF", "bcc"}
    assert settled(before) == before
    replay = [*COMMAND, "-r", str(capture), "-o", "json"]
    replayed = subprocess.run(replay, capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)
    assert (replayed.returncode, replayed.stdout) == (0, done.stdout), replayed.stderr


@pytest.mark.thorough
def test_follow_prints_connections(node: None) -> None:
    before = state()
    options = ["--follow", "--port", str(traffic.NODEPORT_HTTP), "--port", str(traffic.NODEPORT_LONELY), "--", *ASK]
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)
    assert done.returncode == 10, done.stderr
    answered, refused, summary = done.stdout.strip().split("\n\n")
    assert f":{traffic.NODEPORT_HTTP}  accepted, closed after" in answered and "  -> SYN, 60 B" in answered
    assert "  == accepted by scene-pod-" in answered and "  <- SYN ACK, 60 B" in answered
    assert f":{traffic.NODEPORT_LONELY}  no endpoints, refused after" in refused
    assert "  !  ICMP icmp-port-unreachable" in refused and "  == no endpoint: rejected" in refused
    assert "2 SYNs: " in summary and "2 connections, 0 aged out" in summary
    assert settled(before) == before, "listening to conntrack must change nothing"


def test_ends_by_signal(node: None, tmp_path: Path) -> None:
    before = state()
    interrupted = start(tmp_path / "a", "--port", str(traffic.NODEPORT_UDP), "--no-rules")
    wait_until_ready(interrupted, tmp_path / "a")
    for _ in range(4):
        assert traffic.udp_ask(topology.NODE4).outcome == "answered"
    interrupted.send_signal(signal.SIGINT)
    out, err = interrupted.communicate(timeout=END_SECONDS)
    assert interrupted.returncode == 0 and "8 packets in" in out, out + err
    assert "DNAT" in out and "delivered to" in out
    assert settled(before) == before


@pytest.mark.thorough
def test_ends_by_kill(node: None, tmp_path: Path) -> None:
    before = state()
    killed = start(tmp_path / "a", "--port", str(traffic.NODEPORT_UDP), stdout=subprocess.DEVNULL)
    wait_until_ready(killed, tmp_path / "a")
    assert traffic.udp_ask(topology.NODE4).outcome == "answered"
    killed.send_signal(signal.SIGKILL)
    killed.wait(END_SECONDS)
    assert settled(before) == before


@pytest.mark.thorough
def test_ends_when_its_reader_ends(node: None, tmp_path: Path) -> None:
    before = state()
    reader, writer = os.pipe()
    piped = start(tmp_path / "a", "--port", str(traffic.NODEPORT_UDP), "--no-rules", stdout=writer)
    os.close(writer)
    os.close(reader)
    wait_until_ready(piped, tmp_path / "a")
    assert traffic.udp_ask(topology.NODE4).outcome == "answered"
    assert piped.wait(END_SECONDS) == 0, piped.communicate()
    assert settled(before) == before


SHADOW_BCC = "mkdir -p /tmp/pypi/bcc && echo > /tmp/pypi/bcc/__init__.py && PYTHONPATH=/tmp/pypi:$PYTHONPATH "
HIDE = "unshare -m sh -c 'mount -t tmpfs none {} && {}'"


@pytest.mark.parametrize(
    ("shell", "status", "message"),
    [
        ("{run} --iface nope0", 2, "no interface 'nope0'"),
        ("setpriv --reuid 65534 --clear-groups {run} --port 80", 3, "needs root"),
        (HIDE.format("/sys/kernel/btf", "{run} --port 80"), 4, "gives no BTF"),
        (HIDE.format("/usr/lib/python3/dist-packages/bcc", "{run} --port 80"), 5, "bcc"),
        (SHADOW_BCC + "{run} --port 80", 5, "another project of that name from PyPI"),
    ],
)
def test_bad_input_gets_one_sentence_and_its_own_status(node: None, shell: str, status: int, message: str) -> None:
    run = shell.replace("{run}", " ".join(COMMAND))
    done = subprocess.run(run, shell=True, capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)
    assert done.returncode == status, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_doctor(node: None) -> None:
    done = subprocess.run([*COMMAND, "doctor", "-v"], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    for word in ("nf_hook_slow", "ipt_do_table", "iptables legacy", "root", "BTF"):
        assert word in done.stdout
    summary = subprocess.run([*COMMAND, "doctor"], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT).stdout
    assert summary.startswith("+ shown") and len(summary.splitlines()) < len(done.stdout.splitlines()) / 2, summary
    assert done.stdout.splitlines()[-1] == summary.splitlines()[-1].partition("  ")[0]
    hidden = subprocess.run(
        HIDE.format("/sys/kernel/btf", " ".join([*COMMAND, "doctor"])),
        shell=True, capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT,
    )  # fmt: skip
    assert hidden.returncode == 4 and "BTF" in hidden.stdout
