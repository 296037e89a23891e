"""`python -m tests.crash --kills 200`: kill the service 200 times, and print statistics as Markdown rows."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

from tests.crash.trial import KillTrial
from tests.integration.process import migrated_service


def main() -> None:
    """Run one trial. A violation is an AssertionError, and the folder of the service is then kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    kills = parser.parse_args().kills
    begin = time.monotonic()
    service = migrated_service(Path(mkdtemp(prefix="blocklist-kills-")))
    print(f"Data and log of the service: {service.folder}.", flush=True)
    with service:
        stats = KillTrial(service).run(kills)
    shutil.rmtree(service.folder)
    rows = {
        "`kill -9` under load": stats.kills,
        "`kill -9` during a start": stats.kills_in_start,
        "changes": stats.changes,
        "acknowledged": stats.acknowledged,
        "requests without an response": stats.unanswered,
        "watches resumed": stats.resumed,
    }
    print("".join(f"| {name} | {number:,} |\n" for name, number in rows.items()), end="")
    print(f"| time to start after a kill, median | {median(stats.starts):.2f} s |")
    print(f"\nNothing lost in {time.monotonic() - begin:.0f} s.")


if __name__ == "__main__":
    main()
