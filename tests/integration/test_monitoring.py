"""docs/monitoring: Prometheus accepts the rules and expressions, and every metric in them exists."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.debian import require
from tests.docs.test_links import anchors
from tests.integration.bodies import block
from tests.integration.process import ROOT

FOLDER: Final = ROOT / "docs" / "monitoring"
DASHBOARD: Final[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())
_NAME: Final = re.compile(r"\b(?:blocklist|process)_[a-z_]+|\bnumBlockedNodes\b")
_LABELS: Final = re.compile(r'"[^"]*"|\b(?:by|ignoring) \([^)]*\)')


@pytest.fixture(scope="module")
def promtool() -> str:
    return require({"promtool": "prometheus"})["promtool"]


def run(promtool: str, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [promtool, *arguments], input=text, cwd=FOLDER, capture_output=True, text=True, timeout=300, check=False
    )


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard, without rows."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """The expressions of the dashboard, with its variables filled in."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [expr.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*") for expr in found]


class TestRules:
    def test_prometheus_accepts_them(self, promtool: str) -> None:
        done = run(promtool, "check", "rules", "alerts.yml")
        assert done.returncode == 0, done.stdout + done.stderr

    def test_each_alert_fires_only_when_it_should(self, promtool: str) -> None:
        done = run(promtool, "test", "rules", "alerts_test.yml")
        assert done.returncode == 0, done.stdout + done.stderr

    def test_each_alert_has_a_test(self) -> None:
        rules = set(re.findall(r"- alert: (\w+)", (FOLDER / "alerts.yml").read_text()))
        tested = re.findall(r"alertname: (\w+)(?:\n\s+exp_alerts)", (FOLDER / "alerts_test.yml").read_text())
        assert rules == set(tested)

    def test_each_alert_links_to_its_runbook(self) -> None:
        rules = (FOLDER / "alerts.yml").read_text()
        names = re.findall(r"- alert: (\w+)", rules)
        found = re.findall(r"- alert: (\w+)(?:(?!- alert:).)*?runbook_url: https://\S+/docs/(\S+)", rules, re.DOTALL)
        assert found == [(name, f"runbooks.md#{name.lower()}") for name in names]
        assert {name.lower() for name in names} <= anchors(ROOT / "docs" / "runbooks.md")


class TestDashboard:
    def test_panels_do_not_overlap_and_have_a_data_source(self) -> None:
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        assert len(ids) == len(set(ids))
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(cells) == len(set(cells)), "no two overlap"
        assert max(x for x, _ in cells) < 24
        assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels())
        assert [own["name"] for own in DASHBOARD["templating"]["list"]] == ["datasource", "job", "instance"]

    def test_prometheus_accepts_every_expression(self, promtool: str, tmp_path: Path) -> None:
        rules = [{"record": f"panel:{n}", "expr": expr} for n, expr in enumerate(expressions())]
        # JSON is YAML.
        (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
        done = run(promtool, "check", "rules", str(tmp_path / "panels.yml"))
        assert done.returncode == 0, done.stdout + done.stderr


class TestMetrics:
    @pytest.fixture(scope="class")
    @classmethod
    def text(cls, client: httpx.Client) -> str:
        """The metrics of a service that has served requests."""
        client.put("/blocklist/nodes/measured", json=block())
        client.get("/blocklist/nodes/measured")
        return client.get("/metrics").text

    def test_names_follow_prometheus_except_flinks(self, promtool: str, text: str) -> None:
        done = run(promtool, "check", "metrics", text=text)
        complaints = (done.stdout + done.stderr).splitlines()
        assert [line for line in complaints if not line.startswith("numBlockedNodes ")] == []

    def test_rules_and_dashboard_use_only_existing_metrics(self, text: str) -> None:
        there = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
        # One with a sample for each version of listeners has none without listeners.
        there |= set(re.findall(r"# TYPE (\w+) gauge", text))
        rules = re.findall(r"expr: (.*?)\n +(?:for|labels):", (FOLDER / "alerts.yml").read_text(), re.DOTALL)
        named = {name for expr in (*rules, *expressions()) for name in _NAME.findall(_LABELS.sub("", expr))}
        assert len(named) > 25
        assert named <= there

    def test_the_dashboard_shows_all_metrics_of_the_service(self, text: str) -> None:
        ours = set(re.findall(r"# TYPE (blocklist_\w+|numBlockedNodes) ", text))
        shown = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
                 for expr in expressions() for name in _NAME.findall(expr)}  # fmt: skip
        assert ours - shown == set()
