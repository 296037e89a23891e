"""Recordings that others made, as tables of tasks, and what the detection finds in them: `make bench-recordings`.

    python -m benchmarks.recordings RECORDING TABLE.parquet [--scale HOST=FACTOR]

writes one of them as a table for `python -m blocklist.detection --tasks TABLE.parquet`. RECORDING is

- `trace-*.parquet` of github.com/ByteDance-Seed/StragglerAnalysis (Apache-2.0): all operations of a training job. A
  fifth of the steps is an application; a step, pipeline stage and direction a stage; a rank a host;
- `*_job_log` of github.com/kayousterhout/trace-analysis (no licence, so none is in this repository): a Spark 0.8
  application of the Big Data Benchmark on five hosts of EC2, as text or gzip.

`make bench-recordings RECORDINGS=FOLDER` reads all that are in a folder.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import scratch
from benchmarks.rows import Row, Target, at_least
from demo.java_home import java_home

FOLDER: Final = "RECORDINGS"
"""Environment variable: the folder with the recordings."""
APPLICATIONS: Final = 5
"""Applications that a training job is divided into."""
FACTORS: Final = (1.2, 1.3, 1.4, 1.5, 2.0)
"""How many times as long the tasks of one host are made."""
_BEGIN_MS: Final = 1_790_000_000_000
_SLOW_RANK: Final = "gpu-000"
"""The rank that was slowed down in trace-AR."""
_JOB_LOG_TASK: Final = re.compile(r"(\w+)=(\S+)")


def training_tasks(path: Path) -> pa.Table:
    """The compute operations of a straggler trace. Its times are seconds since the beginning of a step."""
    table = pq.read_table(path, columns=["step", "optype", "stage", "rank", "start_ts", "duration"])
    table = table.filter(pc.match_substring(table["optype"].cast(pa.string()), "compute"))
    rows = sorted(table.to_pylist(), key=lambda it: (it["step"], it["stage"], it["optype"], it["start_ts"]))
    began = {step: min(it["start_ts"] for it in own) for step, own in groupby(rows, key=lambda it: it["step"])}
    longest = max(it["start_ts"] + it["duration"] - began[it["step"]] for it in rows)
    steps = sorted(began)
    size = -(-len(steps) // APPLICATIONS)
    name = path.name.removesuffix(".parquet")
    tasks = []
    for number, (stage, own) in enumerate(groupby(rows, key=lambda it: (it["step"], it["stage"], it["optype"]))):
        place = steps.index(stage[0])
        offset = 1.05 * place * longest - began[stage[0]]
        for partition, it in enumerate(own):
            start = _BEGIN_MS + round(1000 * (it["start_ts"] + offset))
            tasks.append(
                {
                    "application": f"{name}-{place // size}",
                    "stage": number,
                    "partition": partition,
                    "host": f"gpu-{it['rank']:03d}",
                    "start": start,
                    "end": start + max(1, round(1000 * it["duration"])),
                    "bytes": None,
                    "outcome": "success",
                }
            )
    return _table(tasks)


def job_log_tasks(path: Path) -> pa.Table:
    """The tasks of an application of Spark 0.8."""
    text = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    lines = (dict(_JOB_LOG_TASK.findall(line)) for line in text.decode(errors="replace").splitlines())
    name = path.name.removesuffix(".gz").removesuffix("_job_log")
    found = [it for it in lines if "TASK_TYPE" in it and "HOST" in it and "FINISH_TIME" in it]
    partitions: dict[str, int] = {}
    tasks = []
    for it in found:
        partitions[it["STAGE_ID"]] = partitions.get(it["STAGE_ID"], -1) + 1
        tasks.append(
            {
                "application": name,
                "stage": int(it["STAGE_ID"]),
                "partition": partitions[it["STAGE_ID"]],
                "host": it["HOST"].lower(),  # as proposals have it
                "start": int(it["START_TIME"]),
                "end": int(it["FINISH_TIME"]),
                "bytes": _number(it, "INPUT_BYTES"),
                "outcome": "success" if it["STATUS"] == "SUCCESS" else "failed",
                "executor": it["EXECUTOR_ID"],
                "run_ms": _number(it, "EXECUTOR_RUN_TIME"),
                "gc_ms": _number(it, "GC_TIME"),
                "fetch_wait_ms": _number(it, "REMOTE_FETCH_WAIT_TIME"),
                "remote_bytes": _number(it, "REMOTE_BYTES_READ"),
                "shuffle_bytes": _number(it, "REMOTE_BYTES_READ"),
                "written_bytes": _number(it, "SHUFFLE_BYTES_WRITTEN"),
            }
        )
    return _table(tasks)


def _number(line: Mapping[str, str], name: str) -> int | None:
    return int(line[name]) if name in line else None


def _table(tasks: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = list(tasks[0]) if tasks else []
    texts = {"application", "host", "outcome", "executor"}
    return pa.Table.from_pylist(
        list(tasks), pa.schema([(name, pa.string() if name in texts else pa.int64()) for name in names])
    )


def tasks_of(path: Path) -> pa.Table:
    """The table of a recording, by its name."""
    return training_tasks(path) if path.name.endswith(".parquet") else job_log_tasks(path)


def scaled(table: pa.Table, host: str, factor: float) -> pa.Table:
    """The table with the tasks of one host that many times as long; in each stage, they start as much later, too.

    With the starts as recorded, more tasks than before would run at once, and none start after the first has ended.
    """
    rows = table.to_pylist()
    own = [it for it in rows if it["host"] == host]
    began: dict[tuple[str, int], int] = {}
    for it in own:
        stage = it["application"], it["stage"]
        began[stage] = min(it["start"], began.get(stage, it["start"]))
    for it in own:
        first = began[it["application"], it["stage"]]
        it["start"], it["end"] = (first + round((it[name] - first) * factor) for name in ("start", "end"))
        for name in ("run_ms", "gc_ms", "fetch_wait_ms"):
            if it.get(name) is not None:
                it[name] = round(it[name] * factor)
    return _table(rows)


# What is found in them.


def run() -> list[Row]:
    """Judge all recordings of a folder; of the healthy ones also with each host made slower."""
    folder = Path(os.environ.get(FOLDER, "recordings"))
    training = {path.name: training_tasks(path) for path in sorted(folder.glob("trace-*.parquet"))}
    logs = [job_log_tasks(path) for path in sorted(folder.glob("**/*_job_log*"))]
    if not training and not logs:
        raise FileNotFoundError(f"{folder.resolve()} has no recordings: set {FOLDER}. {__doc__}")
    rows = [
        _found(name, table, {_SLOW_RANK} if name == "trace-AR.parquet" else set()) for name, table in training.items()
    ]
    for number, cluster in enumerate(_clusters(logs)):
        table, hosts = pa.concat_tables(cluster), sorted(set(cluster[0]["host"].to_pylist()))
        name = f"{len(cluster)} applications on cluster {number + 1}"
        rows.append(_found(name, table, set()))
        for factor in FACTORS:
            judged = [(host, blamed(scaled(table, host, factor))) for host in hosts]
            rows.append(_recall(name, factor, judged))
    return rows


def _clusters(logs: Iterable[pa.Table]) -> list[list[pa.Table]]:
    """The applications by the hosts that they ran on."""
    found: dict[frozenset[str], list[pa.Table]] = {}
    for table in logs:
        found.setdefault(frozenset(table["host"].to_pylist()), []).append(table)
    return list(found.values())


def _found(name: str, table: pa.Table, faulty: set[str]) -> Row:
    right = blamed(table) == faulty
    return _share(f"{name}: {'found, nobody else' if faulty else 'nobody blamed'}", float(right), at_least(100))


def _recall(name: str, factor: float, judged: Sequence[tuple[str, set[str]]]) -> Row:
    wrong = sum(bool(hosts - {host}) for host, hosts in judged)
    share = sum(host in hosts for host, hosts in judged) / len(judged)
    title = f"{name}: host made {factor:g} times slower is found ({len(judged)} hosts; another one blamed: {wrong})"
    return _share(title, share, at_least(100) if factor >= 1.5 else None)


def _share(name: str, share: float, target: Target | None) -> Row:
    ours = "blocklist.detection"
    return Row(name=name, unit="%", ours=ours, samples={ours: [100 * share]}, targets=[target] if target else [])


def blamed(table: pa.Table) -> set[str]:
    """The hosts that the command blames by its default rules, in this process: all judgements share a session."""
    from blocklist.detection.__main__ import main as detect  # noqa: PLC0415 - starts slowly

    os.environ.setdefault("JAVA_HOME", str(java_home()))
    written = io.StringIO()
    with scratch() as folder:
        pq.write_table(table, folder / "tasks.parquet")
        with redirect_stdout(written):
            code = detect(["--tasks", str(folder / "tasks.parquet"), "--json", "-"])
    if code:
        raise RuntimeError("the detection has failed: see its message above")
    return {json.loads(line)["node"] for line in written.getvalue().splitlines()}


def _scale(text: str) -> tuple[str, float]:
    host, _, factor = text.rpartition("=")
    return host, float(factor)


def main(arguments: Sequence[str]) -> None:
    """Write a recording as a table of tasks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recordings", description="See the module.")
    parser.add_argument("recording", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--scale", type=_scale, metavar="HOST=FACTOR", help="make the tasks of one host longer")
    args = parser.parse_args(arguments)
    table = tasks_of(args.recording)
    pq.write_table(scaled(table, *args.scale) if args.scale else table, args.table)


if __name__ == "__main__":
    main(sys.argv[1:])
