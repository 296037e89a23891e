"""The labelled runs, whom a contender blamed in them, and how right that was."""

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
    """One labelled run: which host was faulty (None: none was), and its logs in the order of its applications."""

    name: str
    seed: int
    scenario: str
    faulty: str | None
    logs: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Whom one contender blamed in a case after one, two and three applications."""

    run: LabelledRun
    blamed: tuple[frozenset[str], ...]

    @property
    def found_after(self) -> int | None:
        """After how many applications the faulty host was blamed first."""
        hits = (count for count, hosts in enumerate(self.blamed, start=1) if self.run.faulty in hosts)
        return next(hits, None)

    @property
    def false_positives(self) -> frozenset[str]:
        """The hosts that were blamed at any time and had no fault."""
        return frozenset().union(*self.blamed) - {self.run.faulty or ""}


def labelled_runs(folder: Path = FOLDER) -> list[LabelledRun]:
    """All finished runs, by name."""
    return [_load_run(file) for file in sorted(folder.glob("*/label.json"))]


def _load_run(file: Path) -> LabelledRun:
    label = json.loads(file.read_text(encoding="utf-8"))
    logs = tuple(file.parent / "logs" / application["id"] for application in label["applications"])
    return LabelledRun(
        name=label["run"], seed=label["seed"], scenario=label["scenario"], faulty=label["faulty"], logs=logs
    )


def precision(outcomes: Sequence[Outcome]) -> float | None:
    """Of the hosts that were blamed, the share that had a fault. None: nobody was blamed."""
    right = sum(answer.found_after is not None for answer in outcomes)
    blamed = right + sum(len(answer.false_positives) for answer in outcomes)
    return right / blamed if blamed else None


def recall(outcomes: Sequence[Outcome]) -> float | None:
    """Of the faulty hosts, the share that was blamed within three applications. None: there was none."""
    faulty = [answer for answer in outcomes if answer.run.faulty]
    return sum(answer.found_after is not None for answer in faulty) / len(faulty) if faulty else None
