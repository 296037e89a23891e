"""`python -m blocklist.detection backtest`: what rules would have blocked, and whether actual blocks were right."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from blocklist.client.client import BlocklistClient
from blocklist.detection import log_discovery, reader, task_table
from blocklist.detection.analysis import analysed
from blocklist.detection.log_discovery import DiscoveredLogs
from blocklist.detection.node_summary import HostInApplication, by_host
from blocklist.detection.options import add_input, add_rules, local_paths, read_rules, rule_set
from blocklist.detection.proposals import (
    ActualBlock,
    Agreement,
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
from blocklist.detection.slowness import HOUR_MS
from blocklist.model.changes import Change
from blocklist.model.errors import InvalidError
from blocklist.model.node import BlockedNode
from blocklist.model.text import json_text
from blocklist.wire.changes import ChangeBody

# The result of a backtest as JSON, from which the table is made; times are Unix ms.

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


def text(found: Mapping[str, Any]) -> str:
    """Return tables for a terminal."""
    parts = [f"{found['applications']} applications on {found['hosts']} hosts.\n"]
    for result in found["rules"]:
        parts += ["\n", _summary(result)]
        if result["blocks"]:
            parts.append(columns(_TITLES, [_row(block) for block in result["blocks"]]))
    if (actual := found["actualBlocks"]) is not None:
        counted = (f"{sum(it['agreement'] == kind for it in actual)} {kind}" for kind in Agreement)
        parts.append(f"\nBlocks in the change log: {', '.join(counted)}\n")
        if actual:
            parts.append(columns(_ACTUAL_TITLES, [_actual_row(block) for block in actual]))
    return "".join(parts)


def _summary(result: Mapping[str, Any]) -> str:
    blocks = result["blocks"]
    hours = sum(block["end"] - block["start"] for block in blocks) / HOUR_MS
    return (
        f"{result['name']}: blocks: {len(blocks)}, nodes: {len({block['node'] for block in blocks})}, hours:"
        f" {hours:.1f}, core-hours saved: {result['coreHoursSaved']:.2f}, cost: {result['coreHoursCost']:.2f}\n"
    )


def _row(block: Mapping[str, Any]) -> Mapping[str, str]:
    return {
        "node": block["node"],
        "from": format_time(block["start"]),
        "until": format_time(block["end"]),
        "hours": f"{(block['end'] - block['start']) / HOUR_MS:.1f}",
        "saved": f"{block['coreHoursSaved']:.2f}",
        "cost": f"{block['coreHoursCost']:.2f}",
        "evidence": block["cause"],
    }


def _actual_row(block: Mapping[str, Any]) -> Mapping[str, str]:
    seen = f": {block['differed']} of {block['applications']} applications" if block["applications"] else ""
    return {
        "node": block["node"],
        "from": format_time(block["start"]),
        "until": format_time(block["end"]),
        "owners": " ".join(block["owners"]),
        "evidence": f"{block['agreement']}{seen}",
    }


def _rule_body(name: str, blocks: Sequence[BlockedNode], times: Times) -> Mapping[str, Any]:
    effects = [effect(block, times) for block in blocks]
    bodies = [
        {
            "node": block.id,
            "start": block.start,
            "end": block.end,
            "action": block.action.name,
            "cause": block.cause,
            **({"canary": True} if block.canary else {}),
            **_hours([own]),
        }
        for block, own in zip(blocks, effects, strict=True)
    ]
    return {"name": name, **_hours(effects), "blocks": bodies}


def _hours(effects: Sequence[tuple[int, int]]) -> Mapping[str, float]:
    saved, cost = (core_hours(sum(times)) for times in zip((0, 0), *effects, strict=True))
    return {"coreHoursSaved": saved, "coreHoursCost": cost}


def _actual_body(block: ActualBlock) -> Mapping[str, Any]:
    return {**asdict(block), "agreement": block.agreement.value}


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
            _rule_body(name, replay(evidence, own.rules, machine_kinds(own, client, hosts)), times)
            for name, own in sets.items()
        ]
    blocks = None if changes is None else compare_with_evidence(actual_blocks(changes), evidence)
    found = {
        "applications": len({each.app for each in evidence}),
        "hosts": len(hosts),
        "rules": results,
        "actualBlocks": None if blocks is None else [_actual_body(block) for block in blocks],
    }
    sys.stdout.write(json_text(found) + "\n" if args.output == "json" else text(found))
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
    with analysed(facts, partial(known_nodes, client), are_named=bool(args.tasks)) as analysis:
        for sentence in (*found.problems, *analysis.problems):
            warn(sentence)
        return analysis.evidence(), by_host(analysis.task_times()), found.failed


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
