"""What happened on a node in the order of time: applications, blocks, manual unblocks and failures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from blocklist.detection.actual_blocks import ActualBlock, actual_blocks, differed
from blocklist.detection.evidence import HostInApplication
from blocklist.detection.heuristics import BY_METRIC, NodeVerdict
from blocklist.detection.node_summary import CHARGED_TO_NODE
from blocklist.detection.proposals import manual_unblocks
from blocklist.detection.report_data import FailureBin
from blocklist.detection.report_plots import Bar, bar, count_of, failure_bars
from blocklist.detection.slowness import MIN_EFFECT
from blocklist.model.changes import Change

MAX_RUNS: Final = 30
"""Maximum number of applications in a timeline: the latest."""
MAX_BLOCKS: Final = 20
"""Maximum number of blocks and of unblocks that are listed: the latest."""

Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockHistory:
    """The blocks of a node at the service, and the changes with which somebody unblocked it by hand."""

    blocks: Sequence[ActualBlock]
    unblocks: Sequence[Change]

    @classmethod
    def of(cls, changes: Sequence[Change]) -> BlockHistory:
        return cls(blocks=actual_blocks(changes)[-MAX_BLOCKS:], unblocks=list(manual_unblocks(changes))[-MAX_BLOCKS:])


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """An application on the node: what it shows, and its bar. `lost_ms`: None if the verdict does not charge it."""

    run: HostInApplication
    found: str
    bar: Bar | None
    lost_ms: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Rows with bars in one span of time (Unix ms). `history`: None if it is not known.

    `earlier` applications are not shown. `unblock_bars` mark manual unblocks.
    """

    span: Span
    history: BlockHistory | None
    block_bars: Sequence[Bar]
    unblock_bars: Sequence[Bar]
    own_failures: Sequence[Bar]
    peer_failures: Sequence[Bar]
    own_failed: int
    others_failed: int
    runs: Sequence[RunRow]
    earlier: int


def span_of(runs: Sequence[HostInApplication], history: BlockHistory | None) -> Span:
    """From the first application that is shown to the end of the last one.

    It is longer by up to half of that in each direction if there were blocks or unblocks.
    """
    shown = runs[-MAX_RUNS:]
    begin, end = min(it.first for it in shown), max(it.last for it in shown)
    half = max(1, (end - begin) // 2)
    blocks, unblocks = ([], []) if history is None else (history.blocks, history.unblocks)
    times = [*(time for it in blocks for time in (it.start, it.end)), *(it.at for it in unblocks)]
    return max(begin - half, min([begin, *times])), min(end + half, max([end, *times]))


def timeline(
    verdict: NodeVerdict,
    runs: Sequence[HostInApplication],
    history: BlockHistory | None,
    failures: Sequence[FailureBin],
    since: int,
    span: Span,
) -> Timeline:
    """The timeline of a node; applications that ended before `since` are no evidence any more."""
    blocks, unblocks = ([], []) if history is None else (history.blocks, history.unblocks)
    lost = {it.app: it.lost_ms for it in verdict.hurt}
    highest = max((max(it.own, it.peer_max) for it in failures), default=1)
    shown = runs[-MAX_RUNS:]
    return Timeline(
        span=span,
        history=history,
        block_bars=_present(bar("blocked", it.start, it.end, span, ", ".join(it.owners)) for it in blocks),
        unblock_bars=_present(bar("unblocked", it.at, it.at, span, "unblocked by hand") for it in unblocks),
        own_failures=failure_bars(((it.column, it.own) for it in failures), highest),
        peer_failures=failure_bars(((it.column, it.peer_max) for it in failures), highest),
        own_failed=sum(it.own for it in failures),
        others_failed=sum(it.others for it in failures),
        runs=[_run_row(it, lost, span, since) for it in shown],
        earlier=len(runs) - len(shown),
    )


def _run_row(run: HostInApplication, lost: Mapping[str, int], span: Span, since: int) -> RunRow:
    known = bool(run.comparisons or run.failures)
    kind = "differed" if differed(run) else "same" if known else "unknown"
    ignored = "; before the node was unblocked by hand, so it does not count" if run.last < since else ""
    found = f"{what_it_shows(run)}{ignored}"
    return RunRow(run=run, found=found, bar=bar(kind, run.first, run.last, span, found), lost_ms=lost.get(run.app))


def what_it_shows(run: HostInApplication) -> str:
    """What an application shows about the node, in one sentence."""
    slow = [
        f"{it.slowdown:.1f}x slower{BY_METRIC[it.metric]} in {it.slow_stages} of {count_of(it.stages, 'stage')}"
        for it in run.comparisons
        if log(it.slowdown) >= MIN_EFFECT and it.slow_stages
    ]
    failed = [
        f"{it.failure}: {count_of(it.tasks, 'task')} in {count_of(it.stages, 'stage')}"
        for it in run.failures
        if it.failure in CHARGED_TO_NODE
    ]
    if slow or failed:
        return "; ".join([*slow, *failed])
    return "as good as its peers" if run.comparisons else "not compared: too few tasks or hosts"


def _present(bars: Iterable[Bar | None]) -> list[Bar]:
    return [it for it in bars if it is not None]
