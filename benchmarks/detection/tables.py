"""The score in Markdown: totals, scenarios, and errors of our detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.detection.outcomes import OURS, Outcome, precision, recall
from benchmarks.detection.scenarios import FAULTY, HEALTHY

_HEAD: Final = """\
# Detection results

`make bench-detection` writes this. Each run is three applications on six hosts, of which at most one is faulty; its
number is its seed. Each detector runs after the first, second and third application; a host that was blamed once stays
blamed. z-score: the mean task time of a host is more than three standard deviations above the mean of the other hosts'
means (with the host included, six hosts could never show more than 2.04).
"""


def table(results: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the totals of each detector, then each scenario, in Markdown."""
    lines = ["| | precision | recall | found after 1, 2, 3 | blamed in healthy runs | wrong hosts in faulty runs |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    lines += [f"| {name} | {_sums(outcomes)} |" for name, outcomes in results.items()]
    lines += ["", f"| scenario | seeds | {' | '.join(results)} |", f"|---|---|{'---|' * len(results)}"]
    for scenario in (*FAULTY, *HEALTHY):
        cells = [
            _cell([outcome for outcome in outcomes if outcome.run.scenario == scenario])
            for outcomes in results.values()
        ]
        seeds = [outcome.run.seed for outcome in next(iter(results.values())) if outcome.run.scenario == scenario]
        lines.append(f"| {scenario} | {' '.join(map(str, seeds))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _sums(outcomes: Sequence[Outcome]) -> str:
    faulty = [outcome for outcome in outcomes if outcome.run.faulty]
    healthy = [outcome for outcome in outcomes if not outcome.run.faulty]
    within = [
        sum(outcome.found_after is not None and outcome.found_after <= count for outcome in faulty)
        for count in (1, 2, 3)
    ]
    return " | ".join(
        [
            _percent(precision(outcomes)),
            _percent(recall(outcomes)),
            f"{', '.join(map(str, within))} of {len(faulty)}",
            f"{sum(bool(outcome.false_positives) for outcome in healthy)} of {len(healthy)}",
            f"{sum(bool(outcome.false_positives) for outcome in faulty)} of {len(faulty)}",
        ]
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _cell(outcomes: Sequence[Outcome]) -> str:
    """Found after how many applications, and number of false positives."""
    after = [outcome.found_after for outcome in outcomes if outcome.found_after is not None]
    wrong = sum(len(outcome.false_positives) for outcome in outcomes)
    found = f"{len(after)} found (after {sum(after) / len(after):.1f})" if after else "none found"
    parts = [found] if any(outcome.run.faulty for outcome in outcomes) else []
    return "; ".join([*parts, f"{wrong} wrong"] if wrong or not parts else parts)


def misses(results: Mapping[str, Sequence[Outcome]]) -> str:
    """Return a line for each run that our detector got wrong."""
    lines = [
        f"{outcome.run.name}: faulty {outcome.run.faulty}, blamed {[sorted(hosts) for hosts in outcome.blamed]}"
        for outcome in results.get(OURS, ())
        if outcome.false_positives or (outcome.run.faulty and outcome.found_after is None)
    ]
    return "\n".join(lines)


def document(results: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the page."""
    wrong = misses(results)
    return f"{_HEAD}\n{table(results)}\n" + (
        f"\nErrors of blocklist.detection:\n\n```\n{wrong}\n```\n" if wrong else ""
    )
