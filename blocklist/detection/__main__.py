"""`python -m blocklist.detection`: proposes blocks from event logs; with --apply it blocks."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from blocklist.model.text import escape_unprintable, prepare_streams, report_fault

if __name__ == "__main__":
    # An exception, as SIGINT is, so that the files of Spark and of the analysis are removed.
    signal.signal(signal.SIGTERM, lambda received, _: sys.exit(128 + received))

import duckdb
from pyspark.errors import PySparkException

from blocklist.client.client import BlocklistClient
from blocklist.detection import backtest
from blocklist.detection.analysis import analysed
from blocklist.detection.application_store import ApplicationStore
from blocklist.detection.backtest import read
from blocklist.detection.follow_mode import BatchDecision, LogFollower
from blocklist.detection.log_file import Unread, local_files
from blocklist.detection.options import RuleSet, local_paths, parser, rule_set, validate
from blocklist.detection.proposals import (
    History,
    JudgedNodes,
    LogOwners,
    Proposal,
    Release,
    Summaries,
    json_line,
    judge_with_history,
    proposal_row,
    release_line,
    release_sentence,
    table,
    too_few_hosts,
)
from blocklist.detection.report import blamed_nodes, render
from blocklist.detection.session import (
    ConfirmedHosts,
    apply,
    check_service,
    find_releases,
    history_of,
    known_nodes,
    machine_kinds,
    open_client,
    remove_claims,
    replace_folders,
    session,
    warn,
)
from blocklist.model.errors import BlocklistError, InvalidError, UnavailableError


def main(argv: list[str] | None = None) -> int:
    """Return the exit code: 0 success, 1 failure of Spark, of the service or of I/O, 2 usage error.

    A path from which nothing is read because of an error is a failure, too; the others are analysed.
    """
    prepare_streams()
    try:
        return _main(argv)
    except Exception as error:
        report_fault(error, "detection")
        return 1


def _main(argv: list[str] | None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    is_backtest = arguments[:1] == ["backtest"]
    command = backtest.parser() if is_backtest else parser()
    args = command.parse_args(arguments[is_backtest:])
    try:
        return backtest.run(args) if is_backtest else _run(args)
    except InvalidError as error:
        command.error(str(error))
    except (BlocklistError, OSError) as error:
        return _fail(str(error))
    except PySparkException as error:
        return _fail(f"Spark failed: {str(error).splitlines()[0]}")
    except (duckdb.OperationalError, duckdb.FatalException) as error:
        return _fail(f"DuckDB failed: {str(error).splitlines()[0]}")
    except RuntimeError as error:
        if str(error) != "Query interrupted":  # what DuckDB makes of a signal
            raise
        return 128 + signal.SIGINT


def _run(args: argparse.Namespace) -> int:
    validate(args)
    rules = rule_set(args)
    return _run_follow(args, rules) if args.follow else _run_once(args, rules)


def _run_once(args: argparse.Namespace, rules: RuleSet) -> int:
    with open_client(args) as client:
        check_service(rules, client)
        found, facts = read(args)
        for sentence in found.problems:
            warn(sentence)
        owners = {log.path: log.owner for log in found.logs}
        with analysed(
            facts,
            partial(known_nodes, client),
            owners.get,
            are_named=bool(args.tasks),
            are_logs_trusted=rules.trust_logs,
        ) as analysis:
            for sentence in analysis.problems:
                warn(sentence)
            history = cache(history_of(client))
            judged, releases = _decide(analysis.summaries, rules, client, history, analysis.owners, analysis.log_owners)
            proposals = _carry_out(args, client, judged.proposals, releases)
            few = too_few_hosts(judged.summaries)
            notes = [*judged.judgement.left_open.values(), *judged.judgement.near_misses.values(), *few]
            _write(args, proposals, releases, notes)
            if args.parquet:
                replace_folders(analysis.write(), args.parquet)
            if args.html:
                page = render(
                    analysis,
                    nodes=blamed_nodes(proposals, judged.judgement, history if client else None, applied=args.apply),
                    near_misses=judged.judgement.near_miss_findings,
                    summaries=judged.summaries,
                    releases=[release_sentence(it, applied=args.apply) for it in releases],
                    notes=[*found.problems, *analysis.problems, *few],
                )
                args.html.write_text(page, encoding="utf-8")
    return 1 if found.failed else 0


def _run_follow(args: argparse.Namespace, rules: RuleSet) -> int:
    def decide(store: ApplicationStore) -> BatchDecision:
        with open_client(args) as client:
            history = cache(history_of(client))
            judged, releases = _decide(store.summaries, rules, client, history, store.owners, store.log_owners)
        return BatchDecision(judged=judged, releases=releases)

    def on_updates(proposals: Sequence[Proposal], releases: Sequence[Release], near_misses: Sequence[str]) -> None:
        with open_client(args) as client:
            done = _carry_out(args, client, proposals, releases)
        _write(args, done, releases, near_misses)

    def on_problems(sentences: Sequence[str]) -> None:
        for sentence in sentences:
            warn(sentence)

    def nodes() -> Mapping[str, str]:
        with open_client(args) as client:
            return known_nodes(client)

    paths = local_paths(args.event_logs, "--follow")
    with open_client(args) as client:
        check_service(rules, client)
    on_problems([f"{path} does not exist yet." for path in paths if not Path(path).exists()])
    found = (it for path in paths if Path(path).exists() for it in local_files(path))
    on_problems([it.sentence for it in found if isinstance(it, Unread)])
    trusted = rules.trust_logs
    follower = LogFollower(
        session(), Path(args.checkpoint), decide, on_updates, on_problems, nodes, are_logs_trusted=trusted
    )
    follower.run(paths)
    return 0


def _decide(
    summaries: Summaries,
    rules: RuleSet,
    client: BlocklistClient | None,
    history: History,
    host_owners: Callable[[], Mapping[str, int]],
    log_owners: LogOwners,
) -> tuple[JudgedNodes, Sequence[Release]]:
    """What to block, and whose claims to remove."""
    kinds: Callable[[Sequence[str]], Mapping[str, str]] = partial(machine_kinds, rules, client)
    # Without a service nothing is blocked: then all hosts count.
    confirmed = None if client is None else ConfirmedHosts(client, cache(host_owners))
    owners = None if client is None or rules.trust_logs else cache(log_owners)
    judged = judge_with_history(
        summaries,
        rules.rules,
        kinds,
        history,
        now=time.time_ns() // 1_000_000,
        confirmed=confirmed,
        log_owners=owners,
    )
    if client is None:
        return judged, []
    try:
        return judged, find_releases(client, judged, summaries, history, rules.rules, owners)
    except UnavailableError as error:
        # A claim that is not removed ends by itself.
        warn(f"No claim is removed early: {error}")
        return judged, []


def _carry_out(
    args: argparse.Namespace,
    client: BlocklistClient | None,
    proposals: Sequence[Proposal],
    releases: Sequence[Release],
) -> list[Proposal]:
    """With --apply, block and release. A node that is released is no longer proposed."""
    released = {it.host for it in releases}
    kept = [it for it in proposals if it.verdict.host not in released]
    if not args.apply or client is None:
        return kept
    remove_claims(client, releases)
    return apply(client, kept)


def _write(
    args: argparse.Namespace, proposals: Sequence[Proposal], releases: Sequence[Release], notes: Iterable[str]
) -> None:
    lines = "".join(
        f"{line}\n"
        for line in (
            *(json_line(proposal, applied=args.apply) for proposal in proposals),
            *(release_line(it, applied=args.apply) for it in releases),
        )
    )
    if args.json == "-":
        shown = lines
    else:
        rows = [proposal_row(proposal, applied=args.apply) for proposal in proposals]
        sentences = [*(release_sentence(it, applied=args.apply) for it in releases), *notes]
        # In follow mode there may be nothing but a near miss.
        shown = table(rows) if rows or not args.follow else ""
        shown += "".join(f"{sentence}\n" for sentence in sentences)
    sys.stdout.write("".join(f"{escape_unprintable(line)}\n" for line in shown.splitlines()))
    sys.stdout.flush()
    if args.json and args.json != "-":
        with Path(args.json).open("a" if args.follow else "w", encoding="utf-8") as file:
            file.write(lines)


def _fail(sentence: str) -> int:
    warn(sentence)
    return 1


if __name__ == "__main__":
    sys.exit(main())
