"""`python -m tests.crash --kills 200`: kill the service so often, and say what was found as rows of Markdown."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

from tests.crash.trial import KillTrial
from tests.integration.process import ServiceProcess, run_app


def main() -> None:
    """Run one trial; a fault is an AssertionError that says what was lost, and leaves the service's folder."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    kills = parser.parse_args().kills
    begin = time.monotonic()
    service = ServiceProcess(Path(mkdtemp(prefix="blocklist-kills-")))
    print(f"The service keeps its data and log in {service.folder}.", flush=True)
    assert run_app("migrate", env=service.environment()).returncode == 0
    with service:
        figures = KillTrial(service).run(kills)
    shutil.rmtree(service.folder)
    rows = {
        "kill -9": figures.kills,
        "more of them in a start": figures.kills_in_start,
        "changes": figures.changes,
        "acknowledged": figures.acknowledged,
        "requests without an answer": figures.unanswered,
        "watches resumed": figures.resumed,
    }
    print("".join(f"| {name} | {number:,} |\n" for name, number in rows.items()), end="")
    print(f"| start after a kill, median | {median(figures.starts):.2f} s |")
    print(f"\nNothing lost in {time.monotonic() - begin:.0f} s.")


if __name__ == "__main__":
    main()
