# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md, the alert rules and the dashboard name the metrics that the code has, with the labels that it gives them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tracer.cli.node_agent import DEFAULT_ADDRESS
from tracer.errors import MetricsNotServed
from tracer.metrics.families import metrics
from tracer.metrics.family import MetricDescription, MetricKind
from tracer.metrics.label_sets import PERIOD_NS, TAKES_OVER
from tracer.metrics.label_value import MOST_CHARACTERS
from tracer.metrics.metric_book import exposed_name
from tracer.metrics.metric_sources import LABEL_SETS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/metrics.md").read_text()
DASHBOARD = ROOT / "deploy/grafana/k8snet-trace.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"
METRICS = {exposed_name(name, make.DESCRIPTION.kind): make.DESCRIPTION for name, make in metrics()}
TARGET_LABELS = {"instance", "job", "node", "le"}
"""Labels that Prometheus adds, and that of buckets."""


def row(name: str, description: MetricDescription) -> str:
    labels = ", ".join(f"`{label}`" for label in description.labels) or "-"
    return f"| `{name}` | {description.kind} | {labels} | {description.unit or '-'} | {description.text} |"


def test_each_metric_has_its_row() -> None:
    table = PAGE.partition("## All metrics")[2].partition("\n\nWith them")[0]
    found = [line for line in table.splitlines() if line.startswith("| `")]
    assert found == [row(name, description) for name, description in METRICS.items()]


def test_figures_of_the_page_are_those_of_the_code() -> None:
    assert f"agent --metrics {DEFAULT_ADDRESS}" in PAGE and f"[status {MetricsNotServed.status}]" in PAGE
    assert f"{LABEL_SETS} have a series each" in PAGE and f"cut after {MOST_CHARACTERS} characters" in PAGE
    assert f"Every {PERIOD_NS // 60_000_000_000} minutes" in PAGE and TAKES_OVER == 2 and "more than twice as many" in PAGE


def queries() -> Iterator[str]:
    """The queries of the dashboard, of the alert rules and of the page."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    yield PAGE.partition("    # which rules drop")[2].partition("\n\n")[0]


def described(name: str) -> MetricDescription:
    """The metric to which a name in a query belongs."""
    if name in METRICS:
        return METRICS[name]
    base = re.sub("_(bucket|count|sum)$", "", name)
    assert base != name and METRICS[base].kind is MetricKind.HISTOGRAM, name
    return METRICS[base]


@pytest.mark.parametrize("query", list(queries()))
def test_queries_name_metrics_and_labels_that_exist(query: str) -> None:
    found = re.findall(r"\b(k8snet_trace_\w+)(?:\{([^}]*)\})?", query)
    assert found or "process_" in query
    labels = {*TARGET_LABELS}
    for name, selector in found:
        description = described(name)
        labels |= {*description.labels}
        wanted = set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', selector))
        assert wanted <= {*description.labels} | TARGET_LABELS, (name, wanted)
    grouped = {label for group in re.findall(r"\bby \(([^)]*)\)", query) for label in re.split(r",\s*", group)}
    assert grouped <= labels


def test_every_metric_is_on_the_dashboard() -> None:
    text = DASHBOARD.read_text()
    assert [name for name in METRICS if name not in text] == []


def test_the_dashboard_can_be_imported() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) and all(panel["title"] for panel in panels)
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
    variables = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval", "__range", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) == variables


def test_each_alert_says_what_and_where() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]:
        assert re.fullmatch(r"K8snetTrace[A-Za-z]+", rule["alert"]) and rule["labels"]["severity"] in ("warning", "critical")
        assert "$labels.instance" in rule["annotations"]["summary"] and rule["annotations"]["description"]
    tested = yaml.safe_load((ROOT / "tests/data/prometheus/alerts_test.yaml").read_text())["tests"]
    fires = {case["alertname"] for test in tested for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert fires == {rule["alert"] for rule in group["rules"]}
