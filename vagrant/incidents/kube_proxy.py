# SPDX-License-Identifier: Apache-2.0
"""A process that looks like kube-proxy from outside: its command line, its configuration file, a port that it may listen on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from scenes.topology import STATE_DIR

CONFIG = STATE_DIR / "kube-proxy.conf"

# Its name begins as the names of all servers of a scene, so that all are ended together.
_CODE = """
import socket, sys, time
open("/proc/self/comm", "w").write("scene-kubeproxy")
port = int(sys.argv[1])
if port:
    held = socket.create_server(("0.0.0.0", port))
print("ready", flush=True)
time.sleep(86400)
"""


def start(*options: str, config: str = "", port: int = 0, is_stopped: bool = False) -> None:
    """Starts it.

    options: of its command line. config: text of the file for --config, "" = without it. port: to listen on, 0 = none.
    is_stopped: a signal stops it.
    """
    STATE_DIR.mkdir(parents=True, exist_ok=True)
    if config:
        CONFIG.write_text(config)
        options = (f"--config={CONFIG}", *options)
    command = ["kube-proxy", "-c", _CODE, str(port), *options]
    process = subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout
    if process.stdout.readline() != "ready\n":
        raise OSError("the fake kube-proxy did not start")
    Path(STATE_DIR / f"{process.pid}-kube-proxy.pid").touch()
    if is_stopped:
        process.send_signal(signal.SIGSTOP)
