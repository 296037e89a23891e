"""The score in Markdown: the sum of each contender, each scenario, and what ours got wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.detection.answers import OURS, Answer, precision, recall
from benchmarks.detection.scenarios import FAULTY, HEALTHY

_HEAD: Final = """\
# Found and not found

`make bench-detection` writes this. Each run is three applications on six hosts, one of them faulty or none; its number
is its seed. Each contender is asked after the first, the second and the third application; whom it blamed once, it
blamed. z-score: the mean time of a host's tasks is more than three deviations above the mean of the other hosts' means
(with the host itself among them, six hosts could never show more than 2.04).
"""


def table(said: Mapping[str, Sequence[Answer]]) -> str:
    """In Markdown: the sum of each contender, then each scenario."""
    lines = ["| | precision | recall | found after 1, 2, 3 | blamed in healthy runs | wrong hosts in faulty runs |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    lines += [f"| {name} | {_sums(given)} |" for name, given in said.items()]
    lines += ["", f"| scenario | seeds | {' | '.join(said)} |", f"|---|---|{'---|' * len(said)}"]
    for scenario in (*FAULTY, *HEALTHY):
        cells = [_cell([answer for answer in given if answer.case.scenario == scenario]) for given in said.values()]
        seeds = [answer.case.seed for answer in next(iter(said.values())) if answer.case.scenario == scenario]
        lines.append(f"| {scenario} | {' '.join(map(str, seeds))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _sums(given: Sequence[Answer]) -> str:
    faulty = [answer for answer in given if answer.case.faulty]
    healthy = [answer for answer in given if not answer.case.faulty]
    within = [sum(answer.found is not None and answer.found <= count for answer in faulty) for count in (1, 2, 3)]
    return " | ".join(
        [
            _percent(precision(given)),
            _percent(recall(given)),
            f"{', '.join(map(str, within))} of {len(faulty)}",
            f"{sum(bool(answer.wrong) for answer in healthy)} of {len(healthy)}",
            f"{sum(bool(answer.wrong) for answer in faulty)} of {len(faulty)}",
        ]
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _cell(given: Sequence[Answer]) -> str:
    """Found after how many applications, and how many hosts were blamed wrongly."""
    after = [answer.found for answer in given if answer.found is not None]
    wrong = sum(len(answer.wrong) for answer in given)
    found = f"{len(after)} found (after {sum(after) / len(after):.1f})" if after else "none found"
    parts = [found] if any(answer.case.faulty for answer in given) else []
    return "; ".join([*parts, f"{wrong} wrong"] if wrong or not parts else parts)


def misses(said: Mapping[str, Sequence[Answer]]) -> str:
    """A line for each case that ours got wrong, to look into."""
    lines = [
        f"{answer.case.name}: faulty {answer.case.faulty}, blamed {[sorted(hosts) for hosts in answer.blamed]}"
        for answer in said.get(OURS, ())
        if answer.wrong or (answer.case.faulty and answer.found is None)
    ]
    return "\n".join(lines)


def document(said: Mapping[str, Sequence[Answer]]) -> str:
    """The tables with what there is to know of them, and each run that ours got wrong."""
    wrong = misses(said)
    return f"{_HEAD}\n{table(said)}\n" + (f"\nGot wrong by ours:\n\n```\n{wrong}\n```\n" if wrong else "")
