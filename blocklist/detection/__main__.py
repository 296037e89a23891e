"""`python -m blocklist.detection`: proposes blocks from event logs; with --apply it blocks."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from blocklist.client.client import BlocklistClient
from blocklist.detection import log_discovery, output, reader
from blocklist.detection.apply import Proposal, apply, propose, propose_with_history
from blocklist.detection.follow_mode import LogFollower
from blocklist.detection.heuristics import NodeVerdict, Rules, judge
from blocklist.detection.machine_kinds import machine_kinds
from blocklist.detection.options import parse_rules, parser, validate
from blocklist.detection.pipeline import Analysis
from blocklist.detection.report import render
from blocklist.model.errors import BlocklistError, InvalidError

_ROOT: Final = Path(__file__).parents[2]


def main(argv: list[str] | None = None) -> int:
    """Return the exit code: 0 success, 1 failure of Spark, of the service or of I/O, 2 usage error."""
    command = parser()
    args = command.parse_args(argv)
    try:
        validate(args)
        return _run_follow(args) if args.follow else _run_once(args)
    except InvalidError as error:
        command.error(str(error))
    except (BlocklistError, OSError) as error:
        return _fail(str(error))
    except PySparkException as error:
        return _fail(f"Spark failed: {str(error).splitlines()[0]}")


def _session() -> SparkSession:
    """Use the session that spark-submit configured, else a local one. Settings of the operator take precedence."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Local Python workers import the package from the same place.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.appName("blocklist.detection").config("spark.log.level", "ERROR")
    spark = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower()).getOrCreate()
    context = spark.sparkContext
    if context.getConf().get("spark.sql.shuffle.partitions") is None:
        spark.conf.set("spark.sql.shuffle.partitions", str(2 * context.defaultParallelism))
    return spark


def _run_once(args: argparse.Namespace) -> int:
    rules = parse_rules(args)
    with _client(args) as client:
        spark = _session()
        found = log_discovery.discover(spark, args.event_logs)
        for sentence in found.problems:
            _warn(sentence)
        facts = reader.within(reader.read_facts(spark, found.logs), args.since, args.until)
        with Analysis.of(facts, partial(_known_nodes, client)) as analysis:
            for sentence in analysis.problems:
                _warn(sentence)
            summaries = analysis.summaries()
            proposal = cache(lambda verdict: _proposals(client, [verdict], rules)[0])
            groups = machine_kinds(args, client, [node.host for node in summaries])
            judged = judge(summaries, rules, lambda verdict: proposal(verdict).stale, groups)
            proposals = [proposal(verdict) for verdict in judged.verdicts]
            if args.apply and client is not None:
                proposals = apply(client, proposals)
            rows = [output.row(proposal, applied=args.apply) for proposal in proposals]
            _write(args, proposals, rows, [*judged.left_open.values(), *judged.near_misses.values()])
            if args.parquet:
                analysis.write(args.parquet)
            if args.html:
                notes = [*judged.left_open.values(), *judged.near_misses.values(), *found.problems, *analysis.problems]
                args.html.write_text(render(analysis, summaries, rows, notes), encoding="utf-8")
    return 0


def _run_follow(args: argparse.Namespace) -> int:
    rules = parse_rules(args)

    def on_verdicts(verdicts: Sequence[NodeVerdict]) -> None:
        with _client(args) as client:
            proposals = _proposals(client, verdicts, rules)
            if args.apply and client is not None:
                proposals = apply(client, proposals)
        rows = [output.row(proposal, applied=args.apply) for proposal in proposals]
        _write(args, proposals, rows, ())

    def groups(hosts: Sequence[str]) -> Mapping[str, str]:
        with _client(args) as client:
            return machine_kinds(args, client, hosts)

    LogFollower(_session(), Path(args.checkpoint), rules, on_verdicts, groups).run(args.event_logs)
    return 0


def _client(args: argparse.Namespace) -> BlocklistClient | nullcontext[None]:
    """The service is used only with --apply, --url or BLOCKLIST_URL."""
    needed = args.apply or args.url or os.environ.get("BLOCKLIST_URL")
    return BlocklistClient(args.url) if needed else nullcontext()


def _known_nodes(client: BlocklistClient | None) -> dict[str, str]:
    """The node of each address in the service's inventory; nothing without a service."""
    nodes = client.known_nodes().nodes if client is not None else []
    return {address: node.id for node in nodes for address in node.addresses}


def _proposals(client: BlocklistClient | None, verdicts: Sequence[NodeVerdict], rules: Rules) -> list[Proposal]:
    now = time.time_ns() // 1_000_000
    if client is None:
        return [propose(verdict, (), rules, now=now) for verdict in verdicts]
    return propose_with_history(client, verdicts, rules, now=now)


def _write(
    args: argparse.Namespace, proposals: Sequence[Proposal], rows: Sequence[Mapping[str, str]], left_open: Iterable[str]
) -> None:
    lines = "".join(output.json_line(proposal, applied=args.apply) + "\n" for proposal in proposals)
    if args.json != "-":
        sys.stdout.write(output.table(rows) + "".join(f"{sentence}\n" for sentence in left_open))
        sys.stdout.flush()
    if args.json == "-":
        sys.stdout.write(lines)
        sys.stdout.flush()
    elif args.json:
        with Path(args.json).open("a" if args.follow else "w", encoding="utf-8") as file:
            file.write(lines)


def _warn(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _fail(sentence: str) -> int:
    _warn(sentence)
    return 1


if __name__ == "__main__":
    sys.exit(main())
