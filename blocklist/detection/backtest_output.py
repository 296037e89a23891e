"""The result of a backtest as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocklist.detection.actual_blocks import ActualBlock, Agreement
from blocklist.detection.heuristics import HOUR_MS
from blocklist.detection.output import columns, core_hours, format_time
from blocklist.detection.replay import BlockEffect, PastBlock


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleResult:
    """What one set of rules would have blocked, with the effect of each block."""

    name: str
    blocks: Sequence[tuple[PastBlock, BlockEffect]]

    @property
    def total(self) -> BlockEffect:
        return sum((effect for _, effect in self.blocks), BlockEffect())


@dataclass(frozen=True, kw_only=True, slots=True)
class Backtest:
    """The results of all sets of rules over the same applications. `actual_blocks`: None without a change log."""

    applications: int
    hosts: int
    results: Sequence[RuleResult]
    actual_blocks: Sequence[ActualBlock] | None


def text(found: Backtest) -> str:
    """Return tables for a terminal."""
    parts = [f"{found.applications} applications on {found.hosts} hosts.\n"]
    for result in found.results:
        parts += ["\n", _summary(result)]
        if result.blocks:
            parts.append(columns(_TITLES, [_row(block, effect) for block, effect in result.blocks]))
    if found.actual_blocks is not None:
        parts += ["\n", _agreements(found.actual_blocks)]
        if found.actual_blocks:
            parts.append(columns(_ACTUAL_TITLES, [_actual_row(block) for block in found.actual_blocks]))
    return "".join(parts)


_TITLES = {
    "node": "NODE",
    "from": "FROM (UTC)",
    "until": "UNTIL (UTC)",
    "hours": "HOURS",
    "saved": "SAVED",
    "cost": "COST",
    "evidence": "EVIDENCE",
}
_ACTUAL_TITLES = {
    "node": "NODE",
    "from": "FROM (UTC)",
    "until": "UNTIL (UTC)",
    "owners": "OWNERS",
    "evidence": "LATER EVIDENCE",
}


def _summary(result: RuleResult) -> str:
    nodes = len({block.host for block, _ in result.blocks})
    hours = sum(block.end - block.start for block, _ in result.blocks) / HOUR_MS
    total = result.total
    return (
        f"{result.name}: blocks: {len(result.blocks)}, nodes: {nodes}, hours: {hours:.1f},"
        f" core-hours saved: {core_hours(total.saved_ms):.2f}, cost: {core_hours(total.cost_ms):.2f}\n"
    )


def _row(block: PastBlock, effect: BlockEffect) -> Mapping[str, str]:
    return {
        "node": block.host,
        "from": format_time(block.start),
        "until": format_time(block.end),
        "hours": f"{(block.end - block.start) / HOUR_MS:.1f}",
        "saved": f"{core_hours(effect.saved_ms):.2f}",
        "cost": f"{core_hours(effect.cost_ms):.2f}",
        "evidence": block.cause,
    }


def _agreements(blocks: Sequence[ActualBlock]) -> str:
    counted = {kind: sum(it.agreement is kind for it in blocks) for kind in Agreement}
    return f"Blocks in the change log: {', '.join(f'{count} {kind}' for kind, count in counted.items())}\n"


def _actual_row(block: ActualBlock) -> Mapping[str, str]:
    seen = f": {block.differed} of {block.applications} applications" if block.applications else ""
    return {
        "node": block.node,
        "from": format_time(block.start),
        "until": format_time(block.end),
        "owners": " ".join(block.owners),
        "evidence": f"{block.agreement}{seen}",
    }


def json_body(found: Backtest) -> Mapping[str, Any]:
    """Return the result as one JSON object; times are Unix ms."""
    actual = found.actual_blocks
    return {
        "applications": found.applications,
        "hosts": found.hosts,
        "rules": [_rule_body(result) for result in found.results],
        "actualBlocks": None if actual is None else [_actual_body(block) for block in actual],
    }


def _rule_body(result: RuleResult) -> Mapping[str, Any]:
    blocks = [
        {
            "node": block.host,
            "start": block.start,
            "end": block.end,
            "action": block.action.name,
            "cause": block.cause,
            **({"canary": True} if block.canary else {}),
            **_hours(effect),
        }
        for block, effect in result.blocks
    ]
    return {"name": result.name, **_hours(result.total), "blocks": blocks}


def _hours(effect: BlockEffect) -> Mapping[str, float]:
    return {"coreHoursSaved": core_hours(effect.saved_ms), "coreHoursCost": core_hours(effect.cost_ms)}


def _actual_body(block: ActualBlock) -> Mapping[str, Any]:
    return {
        "node": block.node,
        "start": block.start,
        "end": block.end,
        "owners": list(block.owners),
        "cause": block.cause,
        "agreement": block.agreement.value,
        "applications": block.applications,
        "differed": block.differed,
    }
