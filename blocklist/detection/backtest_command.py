"""`python -m blocklist.detection backtest`: what rules would have blocked, and whether actual blocks were right."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from blocklist.client.client import BlocklistClient
from blocklist.detection import log_discovery, reader
from blocklist.detection.actual_blocks import actual_blocks, compare_with_evidence
from blocklist.detection.backtest_output import Backtest, RuleResult, json_body, text
from blocklist.detection.evidence import HostInApplication, by_host
from blocklist.detection.machine_kinds import check_service, machine_kinds
from blocklist.detection.options import add_input, add_rules
from blocklist.detection.pipeline import Analysis
from blocklist.detection.replay import Times, effect, replay
from blocklist.detection.rule_set import RuleSet, read_rules, rule_set
from blocklist.detection.session import known_nodes, open_client, session, warn
from blocklist.model.changes import Change
from blocklist.model.errors import InvalidError
from blocklist.wire.changes import ChangeBody


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
        evidence, times = _read(args, client)
        hosts = sorted({each.host for each in evidence})
        results = [
            _result(name, rules, machine_kinds(rules, client, hosts), evidence, times) for name, rules in sets.items()
        ]
    blocks = None if changes is None else compare_with_evidence(actual_blocks(changes), evidence)
    found = Backtest(
        applications=len({each.app for each in evidence}), hosts=len(hosts), results=results, actual_blocks=blocks
    )
    sys.stdout.write(json.dumps(json_body(found), ensure_ascii=False) + "\n" if args.output == "json" else text(found))
    return 0


def _read(args: argparse.Namespace, client: BlocklistClient | None) -> tuple[Sequence[HostInApplication], Times]:
    """The facts, read once for all sets of rules."""
    spark = session()
    found = log_discovery.discover(spark, args.event_logs)
    facts = reader.within(reader.read_facts(spark, found.logs), args.since, args.until)
    with Analysis.of(facts, partial(known_nodes, client)) as analysis:
        for sentence in (*found.problems, *analysis.problems):
            warn(sentence)
        return analysis.evidence(), by_host(analysis.task_times())


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
