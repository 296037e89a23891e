"""`python -m tests.detection.screenshot`: the picture of the report in docs/images/, of a simulated cluster."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.detection_quality.event_log import write_event_logs
from benchmarks.detection_quality.runs import SyntheticRun, draw_run
from blocklist import BlocklistClient
from tests.browser.browsing import chromium, monitored
from tests.detection.command import now, run
from tests.integration.process import ROOT, ServiceProcess, run_app

KINDS: Final = {"2 to 3 times slower after a healthy past": "nightly-etl", "disk full or broken": "sessions"}
SEED: Final = 5
SIZE: Final = (1100, 1000)
HEIGHT: Final = 1330
"""The picture ends with the first rows of the timeline."""
_TIMES: Final = re.compile(r'"(Launch Time|Finish Time|Timestamp|Submission Time)":([0-9]+)')


def main(target: Path) -> None:
    """Make the picture."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, html = Path(scratch), Path(scratch, "report.html")
        service = ServiceProcess(folder)
        run_app("migrate", env=service.environment()).check_returncode()
        with service, BlocklistClient(service.url) as client:
            logs = [_write(kind, name, folder) for kind, name in KINDS.items()]
            client.block("worker-n02.example.com", "Fan is loud", end=now() + 3_600_000)
            arguments = ("--event-logs", *logs, "--url", service.url, "--max-share", "0.2", "--html", str(html))
            done = run(*arguments)
        if done.returncode:
            sys.exit(done.stderr)
        _shoot(html, target)


def _write(kind: str, name: str, folder: Path) -> str:
    """Write the logs of a run that ended five minutes ago, with names as clusters have them."""
    drawn = draw_run(kind, SEED)
    shift = now() - 300_000 - max(task.ended for tasks in drawn.applications for task in tasks)
    for file in write_event_logs(drawn, folder / name):
        file.write_text(_renamed(file.read_text(), drawn, name, shift))
    return str(folder / name)


def _renamed(text: str, drawn: SyntheticRun, name: str, shift: int) -> str:
    later = _TIMES.sub(lambda found: f'"{found[1]}":{int(found[2]) + shift}', text)
    named = re.sub(rf'"App Name":"{drawn.name}/[0-9]+"', f'"App Name":"{name}"', later)
    hosts = re.sub(rf'"{drawn.name}/h([0-9]+)"', rf'"worker-{name[0]}\1.example.com"', named)
    return hosts.replace(f'"{drawn.name}/', f'"application_17899488{len(name):02}_00')


def _shoot(html: Path, target: Path) -> None:
    with chromium() as browser, monitored(browser, html.as_uri(), SIZE, device_scale_factor=1) as monitor:
        page = monitor.context.new_page()
        page.goto(html.as_uri())
        box = page.get_by_role("region", name="worker-n02.example.com").bounding_box()
        assert box is not None
        page.screenshot(path=target, full_page=True, clip={**box, "height": HEIGHT})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "detection-report.png")
