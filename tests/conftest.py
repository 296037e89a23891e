"""A failed test shows the logs of the processes that it started in its folder."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

_LINES: Final = 100


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
