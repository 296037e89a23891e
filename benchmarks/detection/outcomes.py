"""Labelled runs, the hosts that a detector blamed in them, and precision and recall."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.detection.collect import FOLDER

OURS: Final = "blocklist.detection"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledRun:
    """A run with its faulty host (None: healthy), and its logs in the order of its applications."""

    name: str
    seed: int
    scenario: str
    faulty: str | None
    logs: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The hosts that a detector blamed after one, two and three applications."""

    run: LabelledRun
    blamed: tuple[frozenset[str], ...]

    @property
    def found_after(self) -> int | None:
        """The number of applications after which the faulty host was first blamed."""
        hits = (count for count, hosts in enumerate(self.blamed, start=1) if self.run.faulty in hosts)
        return next(hits, None)

    @property
    def false_positives(self) -> frozenset[str]:
        """Hosts without a fault that were blamed at any time."""
        return frozenset().union(*self.blamed) - {self.run.faulty or ""}


def labelled_runs(folder: Path = FOLDER) -> list[LabelledRun]:
    """Return all complete runs, by name."""
    return [_load_run(file) for file in sorted(folder.glob("*/label.json"))]


def _load_run(file: Path) -> LabelledRun:
    label = json.loads(file.read_text(encoding="utf-8"))
    logs = tuple(file.parent / "logs" / application["id"] for application in label["applications"])
    return LabelledRun(
        name=label["run"], seed=label["seed"], scenario=label["scenario"], faulty=label["faulty"], logs=logs
    )


def precision(outcomes: Sequence[Outcome]) -> float | None:
    """Return the share of the blamed hosts that were faulty. None: no host was blamed."""
    right = sum(outcome.found_after is not None for outcome in outcomes)
    blamed = right + sum(len(outcome.false_positives) for outcome in outcomes)
    return right / blamed if blamed else None


def recall(outcomes: Sequence[Outcome]) -> float | None:
    """Return the share of the faulty hosts that were blamed. None: no host was faulty."""
    faulty = [outcome for outcome in outcomes if outcome.run.faulty]
    return sum(outcome.found_after is not None for outcome in faulty) / len(faulty) if faulty else None
