"""`python -m tests.claims_soak`: several owners against each other. See docs/evidence/reliability.md."""

from __future__ import annotations

import argparse
import secrets
import shutil
import tempfile
from functools import partial
from pathlib import Path

from tests.claims_soak.soak_run import SoakRun, running_cluster
from tests.claims_soak.two_people import two_people


def main() -> None:
    """Run until the time is over, or until a violation; print figures and violations. Exit code 1: there are any."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="blocklist-soak-"))
    if arguments.people:
        _people(folder, arguments)
        return
    with running_cluster(folder, arguments.replicas) as cluster:
        run = SoakRun(cluster, arguments.seed, pace=arguments.pace)
        print(f"seed {arguments.seed}, folder {folder}", flush=True)
        found = run.run(arguments.minutes * 60, partial(print, flush=True))
    print("\n".join([*run.summary(), f"{len(found)} violations", *found]))
    if found:
        run.save(folder)
        raise SystemExit(f"The logs are in {folder}.")
    shutil.rmtree(folder)


def _people(folder: Path, arguments: argparse.Namespace) -> None:
    print(f"seed {arguments.seed}, folder {folder}", flush=True)
    with two_people(folder, arguments.seed) as people:
        found = people.run(arguments.minutes * 60, partial(print, flush=True))
    print("\n".join([*(f"{number:>8} {name}" for name, number in sorted(people.figures.items())), *found]))
    shutil.rmtree(folder)
    if found:
        raise SystemExit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.claims_soak", description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--people", action="store_true", help="two people with the command, and an alert manager")
    parser.add_argument("--replicas", type=int, default=2, help="on PostgreSQL; 0 is the service alone on SQLite")
    parser.add_argument("--pace", type=float, default=1, help="multiplies the rates of requests and faults")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="determines the requests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
