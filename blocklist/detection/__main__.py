"""`python -m blocklist.detection`: from event logs to proposals, and with --apply to blocks."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from blocklist.client.client import BlocklistClient
from blocklist.detection import log_discovery, output, reader
from blocklist.detection.apply import Proposal, apply, propose, with_history
from blocklist.detection.follow_mode import Follower
from blocklist.detection.heuristics import Rules, Verdict, judge
from blocklist.detection.options import check, parser, rules
from blocklist.detection.pipeline import Evidence
from blocklist.detection.report import render
from blocklist.model.errors import BlocklistError, InvalidError

_ROOT: Final = Path(__file__).parents[2]


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0, 1 if something could not be done, 2 for the operator's mistake."""
    command = parser()
    given = command.parse_args(argv)
    try:
        check(given)
        return _follow(given) if given.follow else _once(given)
    except InvalidError as error:
        command.error(str(error))
    except (BlocklistError, OSError) as error:
        return _fail(str(error))
    except PySparkException as error:
        return _fail(f"Spark failed: {str(error).splitlines()[0]}")


def _session() -> SparkSession:
    """As spark-submit made it, else on this machine. What its operator has set stands."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Python workers on this machine find the package where this process has it.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.appName("blocklist.detection").config("spark.log.level", "ERROR")
    spark = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower()).getOrCreate()
    context = spark.sparkContext
    if context.getConf().get("spark.sql.shuffle.partitions") is None:
        spark.conf.set("spark.sql.shuffle.partitions", str(2 * context.defaultParallelism))
    return spark


def _once(given: argparse.Namespace) -> int:
    asked = rules(given)
    with _client(given) as client:
        spark = _session()
        found = log_discovery.find(spark, given.event_logs)
        for sentence in found.problems:
            _warn(sentence)
        facts = reader.within(reader.read_facts(spark, found.logs), given.since, given.until)
        with Evidence.of(facts) as evidence:
            for sentence in reader.problems(evidence.facts):
                _warn(sentence)
            summaries = evidence.summaries()
            verdicts, left = judge(summaries, asked)
            proposals = _proposals(client, verdicts, asked)
            if given.apply and client is not None:
                apply(client, proposals)
            rows = [output.row(proposal, applied=given.apply) for proposal in proposals]
            _write(given, proposals, rows, left.values())
            if given.parquet:
                evidence.write(given.parquet)
            if given.html:
                notes = [*left.values(), *found.problems]
                given.html.write_text(render(evidence, summaries, rows, notes), encoding="utf-8")
    return 0


def _follow(given: argparse.Namespace) -> int:
    asked = rules(given)

    def tell(verdicts: Sequence[Verdict]) -> None:
        with _client(given) as client:
            proposals = _proposals(client, verdicts, asked)
            if given.apply and client is not None:
                apply(client, proposals)
        rows = [output.row(proposal, applied=given.apply) for proposal in proposals]
        _write(given, proposals, rows, ())

    Follower(_session(), Path(given.checkpoint), asked, tell).run(given.event_logs)
    return 0


def _client(given: argparse.Namespace) -> BlocklistClient | nullcontext[None]:
    """Nobody is asked unless the operator named a service, or wants something of it."""
    asked = given.apply or given.url or os.environ.get("BLOCKLIST_URL")
    return BlocklistClient(given.url) if asked else nullcontext()


def _proposals(client: BlocklistClient | None, verdicts: Sequence[Verdict], asked: Rules) -> list[Proposal]:
    now = time.time_ns() // 1_000_000
    if client is None:
        return [propose(verdict, (), asked, now=now) for verdict in verdicts]
    return with_history(client, verdicts, asked, now=now)


def _write(
    given: argparse.Namespace, proposals: Sequence[Proposal], rows: Sequence[Mapping[str, str]], left: Iterable[str]
) -> None:
    lines = "".join(output.json_line(proposal, applied=given.apply) + "\n" for proposal in proposals)
    if given.json != "-":
        sys.stdout.write(output.table(rows) + "".join(f"{sentence}\n" for sentence in left))
        sys.stdout.flush()
    if given.json == "-":
        sys.stdout.write(lines)
        sys.stdout.flush()
    elif given.json:
        with Path(given.json).open("a" if given.follow else "w", encoding="utf-8") as file:
            file.write(lines)


def _warn(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _fail(sentence: str) -> int:
    _warn(sentence)
    return 1


if __name__ == "__main__":
    sys.exit(main())
