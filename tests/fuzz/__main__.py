"""`python -m tests.fuzz [--requests N] [--seed N]`: a million random requests to the fast path and to the route."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.fuzz.differential import fuzz
from tests.fuzz.services import fuzzed_services


def main() -> None:
    """Fuzz with and without tokens; print how many connections it took."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    given = parser.parse_args()
    for auth in ("tokens", "off"):
        with tempfile.TemporaryDirectory() as folder, fuzzed_services(Path(folder), auth) as (ports, credentials):
            requests = given.requests // 2
            connections = fuzz(ports, credentials, requests=requests, seed=given.seed)
            print(f"auth {auth}, seed {given.seed}: {requests:,} requests on {connections:,} connections")  # noqa: T201


if __name__ == "__main__":
    main()
