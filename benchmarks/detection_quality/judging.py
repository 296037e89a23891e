"""`python -m benchmarks.detection_quality.judging [--faulty N] [--healthy N] [--judged | --first SEED]`

Prints the tables. `--judged` takes seeds that were not used yet. A seed of all kinds takes about two seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, islice
from typing import Final

from benchmarks.detection_quality import JUDGED
from benchmarks.detection_quality.faults import FAULTS
from benchmarks.detection_quality.irregularities import IRREGULARITIES
from benchmarks.detection_quality.outcomes import QualityOutcome, evaluate, run_evidence
from benchmarks.detection_quality.runs import draw_runs
from benchmarks.detection_quality.tables import document

AT_ONCE: Final = 100
"""Runs that are compared in one go: about half a gigabyte."""


def judge_seeds(*, faulty: Sequence[int], healthy: Sequence[int]) -> dict[str, list[QualityOutcome]]:
    """Return the outcomes of each detector in runs of each kind with these seeds."""
    results: defaultdict[str, list[QualityOutcome]] = defaultdict(list)
    runs = chain(draw_runs(FAULTS, faulty), draw_runs(IRREGULARITIES, healthy))
    while some := list(islice(runs, AT_ONCE)):
        for evidence in run_evidence(some):
            for name, outcome in evaluate(evidence).items():
                results[name].append(outcome)
    return dict(results)


def main(arguments: Sequence[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faulty", type=int, default=12, help="runs of each kind of fault")
    parser.add_argument("--healthy", type=int, default=12, help="runs of each healthy kind")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--judged", action="store_const", dest="first", const=JUDGED, help="take seeds not used yet")
    seeds.add_argument("--first", type=int, default=0, help="first seed")
    given = parser.parse_args(arguments)
    first = given.first
    faulty, healthy = range(first, first + given.faulty), range(first, first + given.healthy)
    print(document(judge_seeds(faulty=faulty, healthy=healthy)))


if __name__ == "__main__":
    main(sys.argv[1:])
