"""`python -m blocklist.detection backtest`: what rules would have blocked, and whether actual blocks were right."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from blocklist.client.client import BlocklistClient
from blocklist.detection import log_discovery, reader, task_table
from blocklist.detection.heuristics import HOUR_MS
from blocklist.detection.log_discovery import DiscoveredLogs
from blocklist.detection.node_summary import HostInApplication, by_host
from blocklist.detection.options import RuleSet, add_input, add_rules, local_paths, read_rules, rule_set
from blocklist.detection.pipeline import Analysis
from blocklist.detection.proposals import (
    ActualBlock,
    Agreement,
    BlockEffect,
    PastBlock,
    Times,
    actual_blocks,
    columns,
    compare_with_evidence,
    core_hours,
    effect,
    format_time,
    replay,
)
from blocklist.detection.session import check_service, known_nodes, machine_kinds, open_client, session, warn
from blocklist.model.changes import Change
from blocklist.model.errors import InvalidError
from blocklist.model.text import json_text
from blocklist.wire.changes import ChangeBody

# The result of a backtest as a table and as JSON.


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


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m blocklist.detection backtest",
        description="Replays applications in the order in which they ended: which nodes rules would have blocked, when"
        " and for how long, and how many core-hours that would have saved and cost. Blocks nothing.",
        epilog="Saved: task time above what peers needed, and that of tasks that failed by the fault of the node. Cost:"
        " healthy task time. Both of tasks that started on a node while it would have been blocked.",
    )
    add_input(parser)
    about = "second file of rules, to compare"
    parser.add_argument("--against", type=Path, metavar="FILE", help=about)
    about = "change log of the service as JSON lines, instead of that at --url: which blocks agreed with later evidence"
    parser.add_argument("--change-log", type=Path, metavar="FILE", help=about)
    parser.add_argument("--output", choices=("table", "json"), default="table", help="default: table")
    add_rules(parser.add_argument_group("rules"))
    return parser


def run(args: argparse.Namespace) -> int:
    """Return the exit code. Raises what the command reports as errors."""
    sets = {str(args.rules or "default rules"): rule_set(args)}
    if args.against:
        if str(args.against) in sets:
            raise InvalidError("--against needs another file than --rules.")
        sets[str(args.against)] = read_rules(args.against)
    with open_client(args) as client:
        for rules in sets.values():
            check_service(rules, client)
        changes = _changes(args.change_log, client)
        evidence, times, failed = _read(args, client)
        hosts = sorted({each.host for each in evidence})
        results = [
            _result(name, rules, machine_kinds(rules, client, hosts), evidence, times) for name, rules in sets.items()
        ]
    blocks = None if changes is None else compare_with_evidence(actual_blocks(changes), evidence)
    found = Backtest(
        applications=len({each.app for each in evidence}), hosts=len(hosts), results=results, actual_blocks=blocks
    )
    sys.stdout.write(json_text(json_body(found)) + "\n" if args.output == "json" else text(found))
    return 1 if failed else 0


def read(args: argparse.Namespace) -> tuple[DiscoveredLogs, DataFrame]:
    """Find event logs, or tables of tasks, and return them with their facts."""
    spark = session()
    if args.tasks:
        found = task_table.discover(local_paths(args.tasks, "--tasks"))
        facts = task_table.read_facts(spark, found.logs)
    else:
        found = log_discovery.discover(spark, args.event_logs)
        facts = reader.read_facts(spark, found.logs)
    return found, reader.within(facts, args.since, args.until)


def _read(
    args: argparse.Namespace, client: BlocklistClient | None
) -> tuple[Sequence[HostInApplication], Times, Sequence[str]]:
    """The facts, read once for all sets of rules, and the given paths from which nothing could be read."""
    found, facts = read(args)
    with Analysis.of(facts, partial(known_nodes, client), are_named=bool(args.tasks)) as analysis:
        for sentence in (*found.problems, *analysis.problems):
            warn(sentence)
        return analysis.evidence(), by_host(analysis.task_times()), found.failed


def _result(
    name: str, rules: RuleSet, kinds: Mapping[str, str], evidence: Sequence[HostInApplication], times: Times
) -> RuleResult:
    blocks = replay(evidence, rules.rules, lambda _: kinds)
    return RuleResult(name=name, blocks=[(block, effect(block, times)) for block in blocks])


def _changes(path: Path | None, client: BlocklistClient | None) -> Sequence[Change] | None:
    """The change log; None without a file and a service. Raises InvalidError for a line that is not a change."""
    if path is None:
        return list(client.changes()) if client is not None else None
    changes = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                changes += [ChangeBody.parse(json.loads(line)).value()] if line.strip() else []
            except (ValueError, InvalidError) as error:
                raise InvalidError(f"{path}, line {number} is not a change: {error}") from None
    return changes
