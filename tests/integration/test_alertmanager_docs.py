"""The rules and the configuration in docs/, checked by Prometheus's and Alertmanager's own tools."""

from __future__ import annotations

import subprocess

import pytest

from tests import debian
from tests.alertmanager.monitoring import DOCS, PROGRAMS
from tests.integration.process import ROOT


@pytest.fixture(scope="module")
def programs() -> dict[str, str]:
    return debian.require(PROGRAMS)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("promtool", ["check", "rules", "--lint-fatal", DOCS / "rules.yml"]),
        ("promtool", ["test", "rules", ROOT / "tests" / "alertmanager" / "rules_test.yml"]),
        ("amtool", ["check-config", DOCS / "alertmanager.yml"]),
    ],
    ids=["the rules are right", "the rules fire", "the configuration is right"],
)
def test_the_docs_pass(programs: dict[str, str], program: str, arguments: list[object]) -> None:
    command = [programs[program], *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (["blocklist=mark", "alertname=Hot"], "blocklist,people"),
        (["blocklist=evacuate"], "blocklist,people"),
        (["blocklist=no"], "people"),
        (["alertname=Hot"], "people"),
    ],
)
def test_only_labelled_alerts_are_routed_to_the_service(
    programs: dict[str, str], labels: list[str], receivers: str
) -> None:
    command = [programs["amtool"], "config", "routes", "test", f"--config.file={DOCS / 'alertmanager.yml'}", *labels]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, receivers), done.stderr
