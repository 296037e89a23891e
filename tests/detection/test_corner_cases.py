"""Whatever numbers a log has, the analysis ends, and the other applications keep their verdicts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from blocklist.detection.heuristics import judge
from blocklist.detection.slowness import Rules
from tests.detection.analysing import analyse, parsed
from tests.detection.synthetic_logs import event_log

Event = dict[str, Any]
_VALUES: Final[tuple[Any, ...]] = (0, 0, -1, 1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**70, 0.5, None, "7", [], {})
_TIMES: Final = ("Launch Time", "Finish Time")


def no_bytes(event: Event, _: random.Random) -> None:
    """A task that has read no bytes in no time."""
    metrics = event["Task Metrics"]
    metrics["Input Metrics"] = {"Bytes Read": 0, "Records Read": 0}
    metrics["Executor Run Time"] = metrics["Executor CPU Time"] = 0


def no_metrics(event: Event, _: random.Random) -> None:
    """A task without metrics, as Spark writes it if an executor is lost."""
    del event["Task Metrics"]


def huge(event: Event, _: random.Random) -> None:
    """A task whose numbers are the largest that fit."""
    _replace_numbers(event["Task Metrics"], lambda: 2**63 - 1)


def negative(event: Event, _: random.Random) -> None:
    """A task with negative numbers, which ended before it began: the clock was set back."""
    _replace_numbers(event["Task Metrics"], lambda: -1)
    event["Task Info"]["Finish Time"] = event["Task Info"]["Launch Time"] - 5000


def any_value(event: Event, dice: random.Random) -> None:
    """A task in which any number is anything."""
    _replace_numbers(event["Task Metrics"], lambda: dice.choice(_VALUES))
    event["Task Info"][dice.choice(_TIMES)] = dice.choice(_VALUES)


CORNERS: Final[dict[str, Callable[[Event, random.Random], None]]] = {
    change.__name__: change for change in (no_bytes, no_metrics, huge, negative, any_value)
}


def corner_log(app: str, began: int, corner: str) -> list[str]:
    """An application of which every task is changed by this corner case; `began` in Unix ms."""
    dice = random.Random(app)
    events = [json.loads(line) for line in event_log(app, began)]
    for event in events:
        if event["Event"] == "SparkListenerTaskEnd":
            CORNERS[corner](event, dice)
    return [json.dumps(event, separators=(",", ":")) for event in events]


def _replace_numbers(values: dict[str, Any], value: Callable[[], Any]) -> None:
    for name, present in values.items():
        if isinstance(present, dict):
            _replace_numbers(present, value)
        else:
            values[name] = value()


BEGAN = 1_700_000_000_000


def blamed(folder: Path, logs: Mapping[str, Sequence[str]]) -> list[str]:
    verdicts = judge(analyse(folder, parsed(logs)).summaries(), Rules(min_span_ms=0)).verdicts
    return [verdict.host for verdict in verdicts]


@pytest.mark.parametrize("corner", CORNERS)
def test_an_application_of_strange_numbers_is_analysed(tmp_path: Path, corner: str) -> None:
    assert blamed(tmp_path, {"app-1": corner_log("app-1", BEGAN, corner)}) == []


def test_strange_applications_do_not_cost_the_others_their_verdicts(tmp_path: Path) -> None:
    good = {app: event_log(app, BEGAN, slow="n3") for app in ("app-0", "app-1", "app-2")}
    strange = {corner: corner_log(corner, BEGAN, corner) for corner in CORNERS}
    assert blamed(tmp_path, {**good, **strange}) == ["n3"]
