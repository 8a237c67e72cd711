# SPDX-License-Identifier: Apache-2.0
"""A finding for the tests of the output formats, and the validator of the JSON schema."""

from __future__ import annotations

import json
from importlib import resources

from jsonschema import Draft202012Validator

from tests.support.sample_packets import EPOCH
from tracer import render
from tracer.model.finding import Finding, FindingEvidence

VALIDATOR = Draft202012Validator(json.loads(resources.files(render).joinpath("schema.json").read_text(encoding="utf-8")))
SHOWN = (
    FindingEvidence("rule", "INPUT 2 > KUBE-EXTERNAL-SERVICES 1: -p tcp -j REJECT", "observed"),
    FindingEvidence("process", "ngi\x1bnx (pid 812) listens on tcp 0.0.0.0:30584 of the node", "/proc/net"),
)
FOUND = Finding(
    "nodeport_host_process", (30584,), "nginx listens in vain.", SHOWN, "ss -lntp", "Take another port.",
    packets=3, first=EPOCH, last=EPOCH + 2_000_000_000, numbers=(3, 4, 9),
)  # fmt: skip
