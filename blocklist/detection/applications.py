"""Which application each file of an event log belongs to: by its App ID and attempt, wherever the file lies.

All parts of one log belong to one application. Logs of one application that began at the same time are copies: the one
with most facts counts. Two applications with the same id began at different times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection.log_file import log_of
from blocklist.detection.omissions import Omission
from blocklist.detection.schemas import FACTS, conform


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """What is known of a file: its application's name by its path, by the log itself, when it began (Unix ms).

    `facts`: number of events that were read, without broken lines.
    """

    file: str
    name: str
    app_id: str | None
    began: int | None
    facts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Applications:
    """The application of each file; None for a copy. `problems`: one for each log that is not read."""

    of_file: Mapping[str, str | None]
    problems: Sequence[Omission]


def assign_applications(facts: DataFrame) -> tuple[DataFrame, Sequence[Omission]]:
    """FACTS -> FACTS with the application of each row, without copies, and a problem for each copy.

    Reads the facts once: persist them before.
    """
    files = facts.groupBy("file").agg(
        F.max("app").alias("name"),
        F.max("app_id").alias("app_id"),
        F.min(F.when(F.col("kind") == "application", F.col("time"))).alias("began"),
        F.count(F.when(F.col("kind") != "broken", 1)).alias("facts"),
    )
    found = applications(FileFacts(**row.asDict()) for row in files.where(F.col("file").isNotNull()).collect())
    if not found.of_file:
        return facts, found.problems
    named = facts.sparkSession.createDataFrame(list(found.of_file.items()), "file string, named string")
    joined = facts.join(F.broadcast(named), "file", "left")
    kept = joined.where(F.col("file").isNull() | F.col("named").isNotNull())
    return conform(kept.withColumn("app", F.coalesce("named", "app")), FACTS), found.problems


def applications(files: Iterable[FileFacts]) -> Applications:
    logs: defaultdict[str, list[FileFacts]] = defaultdict(list)
    for each in sorted(files, key=lambda file: file.file):
        logs[log_of(each.file)].append(each)
    names = Counter(parts[0].name for parts in logs.values())
    same: defaultdict[tuple[str, int | None], list[str]] = defaultdict(list)
    of_file: dict[str, str | None] = {}
    for log, parts in logs.items():
        if identity := _identity(parts):
            same[identity].append(log)
        else:
            # Without an App ID, files in different folders may have the same name.
            name = parts[0].name
            of_file |= {part.file: name if names[name] == 1 else log for part in parts}
    problems: list[Omission] = []
    began: defaultdict[str, set[int | None]] = defaultdict(set)
    for app_id, at in same:
        began[app_id].add(at)
    for (app_id, at), copies in same.items():
        kept, *others = sorted(copies, key=lambda log: (-sum(part.facts for part in logs[log]), log))
        name = app_id if len(began[app_id]) == 1 else f"{app_id} ({at})"
        of_file |= {part.file: name for part in logs[kept]}
        of_file |= {part.file: None for log in others for part in logs[log]}
        problems += [_copy(log, kept, app_id) for log in others]
    return Applications(of_file=of_file, problems=problems)


def _copy(log: str, kept: str, app_id: str) -> Omission:
    return Omission(
        subject=f"copy {log}", sentence=f"{log} is skipped: a copy of {kept}, the log of application {app_id}."
    )


def _identity(parts: Sequence[FileFacts]) -> tuple[str, int | None] | None:
    """App ID with its attempt, and the start, as one part of the log has them."""
    return next(((part.app_id, part.began) for part in parts if part.app_id is not None), None)
