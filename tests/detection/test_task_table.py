"""The table of tasks: files of any scheduler become facts, or one sentence that says what is wrong with them.

`recordings/` has extracts of github.com/ByteDance-Seed/StragglerAnalysis (Apache-2.0, commit 8efcd7f): a pipeline stage
of some steps, in which rank 0 was slowed down (trace-AR), or none (trace-SE).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from benchmarks import recordings
from blocklist.detection import task_table
from blocklist.detection.log_file import LogFile
from tests.detection.command import Command, DryRun
from tests.integration.process import ServiceProcess

BEGAN = 1_790_000_000_000
ROW: Mapping[str, Any] = {
    "application": "job-1",
    "stage": 3,
    "partition": 7,
    "host": "Node-1",
    "start": BEGAN,
    "end": BEGAN + 1500,
    "bytes": 4096,
    "outcome": "success",
}


def write(path: Path, rows: Sequence[Mapping[str, Any]], **schema: Any) -> LogFile:
    """Write rows as the end of the name says; `schema`: types that differ from those that values have."""
    table = pa.Table.from_pylist(list(rows))
    for name, kind in schema.items():
        table = table.set_column(table.schema.names.index(name), name, table[name].cast(kind))
    if path.suffix == ".csv":
        pa_csv.write_csv(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        pq.write_table(table, path)
    return LogFile(path=f"file:{path}", size=path.stat().st_size, in_progress=False, root=str(path))


def facts(table: LogFile) -> list[dict[str, Any]]:
    with task_table._opened(table) as file:
        return [row for batch in task_table._facts(table, file) for row in batch.to_pylist()]


def test_a_row_is_a_fact(tmp_path: Path) -> None:
    """In each format: the host in normal form, the executor and the run time as far as they are not given."""
    unknown = {**ROW, "partition": None, "bytes": None, "outcome": "lost"}
    for name in ("tasks.parquet", "tasks.csv", "tasks.jsonl"):
        table = write(tmp_path / name, [ROW, unknown])
        assert task_table.refusal(table) is None, name
        first, second = facts(table)
        wanted = {
            "kind": "task",
            "file": table.path,
            "app": "job-1",
            "stage": 3,
            "attempt": 0,
            "partition": 7,
            "host": "node-1",
            "executor": "node-1",
            "launched": BEGAN,
            "time": BEGAN + 1500,
            "duration": 1500,
            "run_ms": 1500,
            "input_bytes": 4096,
            "outcome": "Success",
            "speculative": False,
        }
        assert {name: value for name, value in first.items() if value is not None} == wanted
        assert (second["outcome"], second["partition"], second["input_bytes"], second["run_ms"]) == (
            "ExecutorLostFailure",
            None,
            None,
            None,
        )


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("start", pa.timestamp("ns", "Asia/Tokyo")),
        ("end", pa.timestamp("us")),
        ("host", pa.dictionary(pa.int8(), pa.string())),
        ("outcome", pa.large_string()),
        ("stage", pa.int16()),
        ("partition", pa.float64()),
        ("bytes", pa.float64()),
        ("end", pa.uint64()),
    ],
    ids=str,
)
def test_columns_may_have_any_type_of_their_kind(tmp_path: Path, column: str, kind: pa.DataType) -> None:
    table = pa.Table.from_pylist([dict(ROW)])
    values = table[column].cast(pa.timestamp("ms") if pa.types.is_timestamp(kind) else table[column].type)
    place = table.schema.names.index(column)
    pq.write_table(table.set_column(place, column, values.cast(kind)), tmp_path / "a.parquet")
    found = facts(LogFile(path=f"file:{tmp_path}/a.parquet", size=5000, in_progress=False))
    pq.write_table(table, tmp_path / "b.parquet")
    expected = facts(LogFile(path=f"file:{tmp_path}/b.parquet", size=5000, in_progress=False))
    assert [{**it, "file": ""} for it in found] == [{**it, "file": ""} for it in expected]


SECONDS, MILLISECONDS = BEGAN // 1000, "it must be in Unix milliseconds"
YEAR, TIME = (
    f"is not between the years 2000 and 2100; {MILLISECONDS}",
    "a timestamp, or an integer of Unix milliseconds",
)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"host": ...}, "it lacks the column host"),
        ({"start": ..., "outcome": ...}, "it lacks the columns start, outcome"),
        ({"host": 17}, "host is of the type int64; it must be text"),
        ({"stage": "map"}, "stage is of the type string; it must be an integer"),
        ({"stage": 1.5}, "stage has a value that is no integer of 64 bits"),
        ({"stage": [1]}, "stage is of the type list<element: int64>; it must be an integer"),
        ({"host": ["a"]}, "host is of the type list<element: string>; it must be text"),
        ({"bytes": Decimal("1.5")}, "bytes is of the type decimal128(2, 1); it must be an integer"),
        (
            {"start": BEGAN / 1000},
            f"start is of the type double; it must be {TIME}",
        ),
        (
            {"end": "2026-11-28"},
            f"end is of the type string; it must be {TIME}",
        ),
        (
            {"start": SECONDS, "end": SECONDS + 1},
            "row 3: start seems to be in seconds; it must be in Unix milliseconds",
        ),
        ({"end": BEGAN * 1000}, f"row 3: end seems to be in microseconds; {MILLISECONDS}"),
        ({"end": BEGAN * 1_000_000}, f"row 3: end seems to be in nanoseconds; {MILLISECONDS}"),
        ({"start": 0}, f"row 3: start {YEAR}"),
        ({"end": 2**63 - 1}, f"row 3: end {YEAR}"),
        ({"end": BEGAN - 1}, "row 3: end is before start"),
        ({"end": 4_000_000_000_000}, "row 3: end is in the future; it would count as newer than any unblock"),
        ({"end": None}, "row 3: end is missing"),
        ({"host": None}, "row 3: host is missing"),
        ({"host": ""}, "row 3: host is empty"),
        ({"application": ""}, "row 3: application is empty"),
        ({"host": "h" * 1001}, "host has more than 1,000 characters"),
        (
            {"outcome": "FINISHED"},
            "row 3: outcome 'FINISHED' is unknown; it must be success, failed, lost, fetch-failed, killed",
        ),
        ({"run_ms": "long"}, "run_ms is of the type string; it must be an integer"),
    ],
)
def test_a_wrong_file_is_refused_with_the_column_and_the_row(
    tmp_path: Path, change: Mapping[str, Any], sentence: str
) -> None:
    changed = {name: value for name, value in {**ROW, **change}.items() if value is not ...}
    is_of_a_row = sentence.startswith("row") or "1,000 characters" in sentence
    rows = [ROW, ROW, changed] if is_of_a_row else [changed]
    for name in ("tasks.parquet", *(["tasks.jsonl"] if is_of_a_row else [])):
        table = write(tmp_path / name, rows)
        assert task_table.refusal(table) == f"file:{tmp_path}/{name} is no table of tasks: {sentence}."


def test_what_is_no_table_is_refused_without_showing_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "secret.parquet").write_text("blt_secret\n")
    (tmp_path / "secret.csv").write_text("blt_secret\n")
    (tmp_path / "secret.jsonl").write_text("blt_secret\n")
    (tmp_path / "empty.parquet").write_text("")
    (tmp_path / "notes.txt").write_text("Ask Kim about rack 7.\n")
    header = ",".join(ROW)
    (tmp_path / "text.csv").write_text(f"{header}\njob,blt_secret,1,a,1,2,3,success\n")
    whole = write(tmp_path / "cut.parquet", [ROW] * 100)
    (tmp_path / "cut.parquet").write_bytes(Path(whole.path.removeprefix("file:")).read_bytes()[:-100])
    write(tmp_path / "target", [ROW])
    (tmp_path / "link.parquet").symlink_to(tmp_path / "target")
    good = write(tmp_path / "good.parquet", [ROW])
    found = task_table.discover([str(tmp_path)])
    assert [it.path for it in found.logs] == [good.path]
    assert found.failed == []
    assert "blt_secret" not in "".join(found.problems)
    assert len(found.problems) == 9, found.problems
    assert f"file:{tmp_path}/link.parquet is skipped: it is a link." in found.problems
    assert f"file:{tmp_path}/secret.csv is no table of tasks: it lacks the columns {', '.join(ROW)}." in found.problems


def test_a_path_that_yields_nothing_because_of_an_error_has_failed(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    wrong = write(tmp_path / "wrong.parquet", [{**ROW, "outcome": "done"}])
    paths = [str(tmp_path / name) for name in ("none", "missing", "wrong.parquet")]
    assert task_table.discover(paths).failed == paths
    assert task_table.discover([str(tmp_path)]).failed == [str(tmp_path)], wrong


def test_a_number_that_no_partition_has_counts_as_unknown(tmp_path: Path) -> None:
    """One more than the largest number of 64 bits, as the size of a stage, would end the analysis."""
    numbers = (0, 2**31 - 1, 2**31, 2**63 - 1, -1)
    found = facts(write(tmp_path / "a.parquet", [{**ROW, "partition": number} for number in numbers]))
    assert [it["partition"] for it in found] == [0, 2**31 - 1, None, None, None]


def test_a_text_that_is_repeated_takes_no_memory(tmp_path: Path) -> None:
    """A dictionary of a few kilobytes would be gigabytes if each row had its own copy."""
    rows = [{**ROW, "message": "x" * 1_000_000, "outcome": "failed"}] * 3000
    table = write(tmp_path / "a.parquet", rows)
    before = pa.default_memory_pool().max_memory()
    assert [len(it["message"]) for it in facts(table)] == [300] * 3000
    assert pa.default_memory_pool().max_memory() - before < 50_000_000


def test_a_table_is_read_in_batches(tmp_path: Path) -> None:
    """However many rows it has, memory holds some thousand of them."""
    rows = pa.Table.from_pylist([{**ROW, "partition": number} for number in range(1000)])
    with pq.ParquetWriter(tmp_path / "a.parquet", rows.schema) as writer:
        for _ in range(40):
            writer.write_table(pa.concat_tables([rows] * 25))
    table = LogFile(path=f"file:{tmp_path}/a.parquet", size=2**20, in_progress=False)
    pool = pa.default_memory_pool()
    highest, count, before = 0, 0, pool.bytes_allocated()
    with task_table._opened(table) as file:
        for batch in task_table._facts(table, file):
            count += batch.num_rows
            highest = max(highest, pool.bytes_allocated() - before)
    assert count == 1_000_000
    assert highest < 60_000_000


def test_event_logs_become_the_table_and_are_judged_alike(proposed: DryRun, run_command: Command) -> None:
    """`--parquet` writes it; the verdict of the logs and of their table is the same, and so are the facts."""
    tasks = str(proposed.parquet / "tasks")
    code, out, err = run_command("--tasks", tasks, "--json", "-")
    assert (code, err) == (0, "")
    (own,) = [json.loads(line) for line in out.splitlines()]
    (line,) = [json.loads(text) for text in proposed.lines.read_text().splitlines()]
    assert own == line
    assert pq.read_table(tasks).column_names[:8] == list(task_table.FACT_OF)


def test_tables_of_one_owner_are_the_word_of_one_party(
    run_command: Command, proposed: DryRun, fresh: ServiceProcess, tmp_path: Path
) -> None:
    """As with event logs: a node is blocked if files of two owners show it."""
    table = pq.read_table(proposed.parquet / "tasks")
    for number in range(3):
        own = table.filter(pc.equal(table["application"], f"app-{number}"))
        pq.write_table(own, tmp_path / f"{number}.parquet")
    arguments = ("--tasks", str(tmp_path), "--url", fresh.url, "--apply", "--json", "-")
    _, out, _ = run_command(*arguments)
    assert json.loads(out)["whyNot"].startswith("all its evidence is in logs of one file owner")
    os.chown(tmp_path / "1.parquet", 4711, 4711)
    _, out, _ = run_command(*arguments)
    assert json.loads(out)["applied"] is True


@pytest.mark.parametrize(("name", "slow"), [("trace-AR", ["gpu-000"]), ("trace-SE", [])])
def test_the_slow_rank_of_a_training_job_is_found(
    run_command: Command, tmp_path: Path, name: str, slow: Sequence[str]
) -> None:
    """ByteDance's recordings: one rank of 16 was slowed down; long sequences are nobody's fault."""
    table = recordings.tasks_of(Path(__file__).parent / "recordings" / f"{name}.parquet")
    pq.write_table(table, tmp_path / "tasks.parquet")
    code, out, err = run_command("--tasks", str(tmp_path / "tasks.parquet"), "--minutes", "0", "--json", "-")
    assert code == 0, err
    assert [json.loads(line)["node"] for line in out.splitlines()] == slow


def test_times_of_a_time_zone_are_moments(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 28, 12, tzinfo=UTC)
    (fact,) = facts(write(tmp_path / "a.parquet", [{**ROW, "start": moment, "end": moment + timedelta(seconds=2)}]))
    assert (fact["launched"], fact["duration"]) == (round(moment.timestamp() * 1000), 2000)
