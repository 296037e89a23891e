"""`python -m tests.chaos`: a manual run of any duration. See docs/evidence/reliability.md."""

from __future__ import annotations

import argparse
import secrets
import shutil
import tempfile
from pathlib import Path

from tests.chaos.chaos_run import ChaosRun
from tests.chaos.cluster import running_cluster


def main() -> None:
    """Run the chaos test, and print a summary and all violations; the exit code is 1 if there are any."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="blocklist-chaos-"))
    with running_cluster(folder, arguments.replicas, kills=arguments.kills) as cluster:
        record = ChaosRun(cluster, arguments.seed).run(arguments.minutes * 60)
    print("\n".join(record.summary()), flush=True)
    found = record.violations()
    print("\n".join([f"{len(found)} violations", *found]))
    if found:
        record.save(folder)
        raise SystemExit(f"The full record is in {folder}.")
    shutil.rmtree(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--replicas", type=int, default=3, help="on PostgreSQL; 0 is the service alone on SQLite")
    parser.add_argument(
        "--kills",
        action="store_true",
        help="with --replicas 0: kill -9 within two seconds after each start, and no other faults",
    )
    parser.add_argument("--seed", default=secrets.token_hex(4), help="determines the requests and faults")
    return parser.parse_args()


if __name__ == "__main__":
    main()
