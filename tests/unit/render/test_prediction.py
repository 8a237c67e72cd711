# SPDX-License-Identifier: Apache-2.0
"""The output of predicted paths, and of a traced packet compared with them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import audits
from tests.support.audits import CLIENT, NODE
from tests.support.nodes import node
from tests.support.sample_findings import VALIDATOR
from tests.unit.predict.test_compare import seen
from tracer import render
from tracer.kube.attribution import attribute_path
from tracer.model.prediction import PredictedPath
from tracer.model.prediction_check import PredictionCheck
from tracer.predict.compare import compare
from tracer.predict.query import PathQuery


def predicted_paths(folder: Path, mode: str, scenario: str, query: PathQuery) -> list[PredictedPath]:
    state = audits.state(node(mode, scenario), folder)
    return [attribute_path(each, state.cluster) for each in audits.path_predictor(state).predict(query)]


def text(found: list[PredictedPath]) -> list[str]:
    out = io.StringIO()
    render.find("text")(out, io.StringIO()).explained(found)
    return out.getvalue().splitlines()


def test_randomly_chosen_endpoints_are_one_line_each(tmp_path: Path) -> None:
    lines = text(predicted_paths(tmp_path, "1.36.2-iptables-legacy", "S2-three", PathQuery(CLIENT, 0, NODE, 30285)))
    assert lines[0] == "explained     TCP 192.168.56.1 -> 192.168.56.10:30285  SYN  node eth0  NEW"
    assert lines[2].strip() == "one of 3 endpoints, each for 1/3 of all connections"
    assert lines[3].startswith(
        "              PREROUTING  DNAT         192.168.56.10:30285 -> 10.244.0.11:8080  Service default/http-proxy"
    )
    assert "                          route        dev cni0" in lines and "          =>  forwarded to cni0" in lines
    assert lines[-3:] == [
        "              or 10.244.0.12:8080 (pod default/http-proxy-b (node-1)) by KUBE-SVC-5DZI2HW7VHZLUOJ5 3 >"
        " KUBE-SEP-3PDFFOCG7ZDSLXW5 2",
        "              or 10.244.0.13:8080 (pod default/http-proxy-c (node-1)) by KUBE-SVC-5DZI2HW7VHZLUOJ5 4 >"
        " KUBE-SEP-ZQC77O5S6GGCOSJT 2",
        "",
    ]
    assert not any("(derived)" in line or "+0.00" in line for line in lines), "every hop is derived and has no time"


def test_conditions_are_printed_on_each_path(tmp_path: Path) -> None:
    lines = text(predicted_paths(tmp_path, "1.36.2-nftables-nft", "S5-nodeport", PathQuery(CLIENT, 0, NODE, 30306)))
    conditions = [line.strip() for line in lines if "cannot be computed" in line]
    assert len(conditions) == 2 and conditions[1].startswith("or if in PREROUTING ip ")
    assert all("runs first" in condition for condition in conditions)


@pytest.mark.parametrize("scenario", ["S1", "S2-three", "S5-nodeport"])
def test_predicted_paths_in_json(scenario: str, tmp_path: Path) -> None:
    out = io.StringIO()
    port = {"S1": 30584, "S2-three": 30285}.get(scenario, 30306)
    found = predicted_paths(tmp_path, "1.36.2-nftables-nft", scenario, PathQuery(CLIENT, 0, NODE, port))
    render.find("json")(out, io.StringIO()).explained(found)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == len(found)
    for line, predicted in zip(lines, found, strict=True):
        VALIDATOR.validate(line)
        assert line["share"] == float(predicted.share) and line["doubts"] == list(predicted.conditions)
        whole = {"type": "packet", "number": 1, "time": "2026-01-31T14:03:22.118204511Z", "length": 60, **line["packet"]}
        VALIDATOR.validate(whole)
        assert {h["evidence"] for h in whole["hops"]} == {"derived"}


def test_a_traced_packet_is_compared_with_the_prediction(tmp_path: Path) -> None:
    found = predicted_paths(tmp_path, "1.36.2-iptables-legacy", "S2-one", PathQuery(CLIENT, 0, NODE, 30285))
    packet = replace(seen(found[0]), time=1)
    right = compare(found, packet)
    wrong = PredictionCheck(found[0], 2, "in FORWARD filter predicted ACCEPT, seen DROP")
    for name in ("text", "json"):
        out = io.StringIO()
        form = render.find(name)(out, io.StringIO())
        form.compared(packet, right)
        form.compared(packet, wrong)
        printed = out.getvalue()
        if name == "text":
            assert "=>  as explained: forwarded to cni0" in printed and f"=>  not as explained: {wrong.difference}" in printed
        else:
            lines = [json.loads(line) for line in printed.splitlines()]
            for line in lines:
                VALIDATOR.validate(line)
            assert "difference" not in lines[0] and lines[1]["difference"] == wrong.difference and lines[1]["agreed"] == 2


def test_of_several_endpoints_the_chosen_one_is_named(tmp_path: Path) -> None:
    found = predicted_paths(tmp_path, "1.36.2-iptables-legacy", "S2-three", PathQuery(CLIENT, 0, NODE, 30285))
    packet = replace(seen(found[1]), time=1)
    out = io.StringIO()
    render.find("text")(out, io.StringIO()).compared(packet, compare(found, packet))
    assert "=>  as explained, to 10.244.0.12:8080 (pod default/http-proxy-b (node-1)): forwarded to cni0" in out.getvalue()
