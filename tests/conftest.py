"""A failed test shows the logs of the services that it started. No property test has a time limit."""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.length import LENGTH, longer
from tests.scheduling import pytest_xdist_make_scheduler

__all__ = ["pytest_xdist_make_scheduler"]

# A busy machine would fail tests that are right.
settings.register_profile(
    "no time limits", deadline=None, max_examples=longer(50), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("no time limits")

_LINES: Final = 100


def pytest_configure() -> None:
    """Hand the logs of services in this process to pytest: by default they go to what is stdout at that moment."""
    structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A longer run has longer time limits."""
    if LENGTH == 1:
        return
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0] if marker else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(longer(seconds)), append=False)


def pytest_collection_finish() -> None:
    """A full garbage collection with all tests takes 0.3 s, in which a service in this process does nothing."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last lines of its logs."""
    report = yield
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    if report.failed and isinstance(folder := arguments.get("tmp_path"), Path):
        for log in sorted(folder.rglob("*.log")):
            last = log.read_text(errors="replace").splitlines()[-_LINES:]
            report.sections.append((f"The end of {log.relative_to(folder)}", "\n".join(last)))
    return report
