# SPDX-License-Identifier: Apache-2.0
"""Compiles the BPF text here, as bcc does on a node, for recorded kernels (recorded_kernels.py)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tracer.events import bpf_source
from tracer.kernel.program_source import split

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
"""The distribution's Python: it has bcc, the Python that runs the tests may not."""
COMPILE = """
import json, os, sys
from tracer.kernel import bcc_compiler
os.environ["ARCH"] = sys.argv[1]
programs = bcc_compiler.compile_texts(json.load(sys.stdin)).programs
print(json.dumps({name: programs[name].hex() for name in sys.argv[2:]}))
"""


def compiled(headers: dict[str, str], machine: str, *programs: str, processors: int = 1) -> dict[str, str]:
    """The code of these programs, as hex. headers: the generated files, by name. machine: "x86" or "arm64".

    Skips the test where this is impossible: bcc creates the maps when it compiles, which needs root.
    """
    if os.geteuid() != 0 or subprocess.run([PYTHON, "-c", "import bcc"], capture_output=True).returncode != 0:
        pytest.skip("no bcc here, or not root")
    command = [PYTHON, "-c", COMPILE, machine, *programs]
    ran = subprocess.run(
        command,
        input=json.dumps(split(bpf_source.whole("tracer.c", headers), processors)),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str] = json.loads(ran.stdout)
    return found
