"""Dashboards and rules name metrics and labels that there are, and rules are whole."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.metrics import catalogue
from api.metrics.family import Kind

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
RULES = DEPLOY / "prometheus" / "rules.yml"
SELECTOR = re.compile(r"\b(headway_\w+|up)\b(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"[^\"]*\"")
GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
DURATION = re.compile(r"\d+(s|m|h)")
TARGET_LABELS = {"instance", "job"}


def known() -> dict[str, set[str]]:
    """By series: its labels."""
    found: dict[str, set[str]] = {"up": set()}
    for family in catalogue.ALL:
        labels = set(family.labels)
        if family.kind is Kind.HISTOGRAM:
            found |= {f"{family.name}_{part}": labels for part in ("count", "sum")}
            found[f"{family.name}_bucket"] = labels | {"le"}
        else:
            found[family.name] = labels
    return found


SERIES = known()


def faults(expr: str) -> list[str]:
    """What an expression names that there is not, and brackets that do not match."""
    found: list[str] = []
    named: set[str] = set(TARGET_LABELS)
    for name, selector in SELECTOR.findall(expr):
        if name not in SERIES:
            found.append(f"no metric {name}")
            continue
        named |= SERIES[name]
        labels = set(LABEL.findall(selector))
        found += [f"{name} has no label {label}" for label in labels - SERIES[name] - TARGET_LABELS]
    grouped = {label.strip() for labels in GROUPING.findall(expr) for label in labels.split(",")}
    found += [f"grouped by {label}, which none of them has" for label in grouped - named]
    plain = re.sub(r'"[^"]*"', "", expr)
    found += [f"{a}{b} do not match" for a, b in ("()", "{}", "[]") if plain.count(a) != plain.count(b)]
    return found if SELECTOR.search(expr) else [*found, "it names no metric"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def targets(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [target for panel in panels for target in panel.get("targets", [])]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_dashboards_name_metrics_and_labels_that_there_are(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == path.stem
    shown = targets(board["panels"])
    assert len(shown) > 20
    assert {target["expr"]: faults(target["expr"]) for target in shown if faults(target["expr"])} == {}
    for target in shown:
        drawn = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert drawn <= set.union(*(SERIES[name] for name, _ in SELECTOR.findall(target["expr"])))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_every_metric_of_state_is_on_a_dashboard_or_in_a_rule() -> None:
    """What nobody would ever see need not be counted."""
    text = "".join(path.read_text() for path in (*DASHBOARDS, RULES))
    unseen = {family.name for family in catalogue.ALL if family.name not in text}
    assert unseen <= {
        *("headway_balance_variation", "headway_balance_jain", "headway_balance_uneven", "headway_dead_jobs"),
        *("headway_tenant_requests_total", "headway_api_loop_lag_seconds"),
        "headway_api_resident_memory_bytes",
    }


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_rules_are_whole_and_name_what_there_is(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    assert re.fullmatch(r"Headway[A-Za-z0-9]+", rule["alert"])
    assert faults(rule["expr"]) == []
    assert all(DURATION.fullmatch(rule[name]) for name in ("for", "keep_firing_for") if name in rule)
    assert rule["labels"]["severity"] in ("page", "warning", "info")
    assert rule["annotations"]["summary"]
    assert f"`{rule['alert']}`" in (DEPLOY.parent / "docs" / "observing.md").read_text("utf-8")


def test_the_issue_of_rules_is_covered() -> None:
    """Balance, oldest P0 age, breaker, dead letters, forecast drift, lease expiry, limits."""
    text = "".join(rule["expr"] for rule in rules())
    for name in (
        catalogue.CAUSE, catalogue.MAX_OVER_MEAN, catalogue.QUEUE_OLDEST, catalogue.WORKER_BREAKER,
        catalogue.DEAD_LETTERS, catalogue.FORECAST_ERROR, catalogue.EXPIRED_LEASES, catalogue.REFUSALS,
    ):  # fmt: skip
        assert name.name in text


@pytest.mark.parametrize(
    ("expr", "fault"),
    [
        ("headway_nothing > 1", "no metric headway_nothing"),
        ('headway_slots{worker="w"}', "headway_slots has no label worker"),
        ("sum by (tenant) (headway_slots)", "grouped by tenant, which none of them has"),
        ("sum(headway_slots", "() do not match"),
        ("vector(1)", "it names no metric"),
    ],
)
def test_what_is_wrong_with_an_expression_is_found(expr: str, fault: str) -> None:
    assert faults(expr) == [fault]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_each_alert_fires_on_what_it_is_for_and_a_healthy_pool_is_quiet() -> None:
    """Both are in rules_test.yml, for Prometheus' own tool."""
    subprocess.run(
        ["promtool", "test", "rules", RULES.with_name("rules_test.yml")], check=True, capture_output=True
    )


def test_the_file_for_promtool_counts_all_rules() -> None:
    firing = f"exp_samples: [{{value: {len(rules())}}}]"
    assert firing in RULES.with_name("rules_test.yml").read_text()
