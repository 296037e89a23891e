"""`python -m tests.chaos`: a manual run of any duration. See docs/evidence/reliability.md."""

from __future__ import annotations

import argparse
import secrets
import shutil
import tempfile
from functools import partial
from pathlib import Path

from tests.chaos.chaos_run import OWNERS, STORM, ChaosRun
from tests.chaos.cluster import Faults, running_cluster
from tests.chaos.two_people import two_people


def main() -> None:
    """Run until the time is over, or until a violation; print figures and violations. Exit code 1: there are any."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="blocklist-chaos-"))
    print(f"seed {arguments.seed}, folder {folder}", flush=True)
    seconds, on_progress = arguments.minutes * 60, partial(print, flush=True)
    if arguments.people:
        with two_people(folder, arguments.seed) as people:
            found = people.run(seconds, on_progress)
        print("\n".join(f"{number:>8} {name}" for name, number in sorted(people.figures.items())))
    else:
        faults = Faults.KILLS if arguments.kills else Faults.FEW if arguments.owners else Faults.ALL
        with running_cluster(folder, arguments.replicas, faults) as cluster:
            run = ChaosRun(cluster, arguments.seed, OWNERS if arguments.owners else STORM)
            found = run.run(seconds, on_progress)
        print("\n".join(run.summary()))
        if found:
            run.save(folder)
    print("\n".join([f"{len(found)} violations", *found]))
    if found:
        raise SystemExit(f"The logs are in {folder}.")
    shutil.rmtree(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--replicas", type=int, default=3, help="on PostgreSQL; 0 is the service alone on SQLite")
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--kills", action="store_true", help="kill -9 within two seconds after each start, and no other faults"
    )
    only.add_argument("--owners", action="store_true", help="several owners against each other, and few faults")
    only.add_argument("--people", action="store_true", help="two people with the command, and an alert manager")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="determines the requests and faults")
    return parser.parse_args()


if __name__ == "__main__":
    main()
