"""`python -m benchmarks.detection.collect [NAME …]`: makes missing runs with their labels.

`<cache>/detection/<run>/logs/` has the event logs of a run, `<run>/label.json` its fault. The label is written last: a
run without one is made again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Final

from benchmarks.detection import archive, faults
from benchmarks.detection.application import interrupted, run_application
from benchmarks.detection.hosts import SHARE, Hosts, unmount_leftovers
from benchmarks.detection.scenarios import HOSTS, Run, runs
from benchmarks.harness import CACHE

FOLDER: Final = CACHE / "detection"
ATTEMPTS: Final = 2  # per run, each on a new cluster


def collect(names: Sequence[str] = ()) -> None:
    """Make all runs, or the named ones, that have no label. Needs root for control groups, mounts and the network."""
    if _missing(names) and os.geteuid() != 0:
        raise SystemExit("real faults need root, for control groups, mounts and tc")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _missing(names):
            faults.restore_network()
            unmount_leftovers()
        for _ in range(ATTEMPTS):
            todo = _missing(names)
            while todo:
                todo = _collect_until_failure(todo, archive.options(FOLDER))


def _missing(names: Sequence[str]) -> list[Run]:
    wanted = [run for run in runs() if not names or run.name in names]
    return [run for run in wanted if not (FOLDER / run.name / "label.json").exists()]


def _collect_until_failure(todo: Sequence[Run], java: str) -> list[Run]:
    """Make runs on one cluster until one fails; return the runs that remain."""
    with Hosts(HOSTS) as hosts:
        for place, run in enumerate(todo):
            print(time.strftime("%H:%M:%S"), run.name, flush=True)
            try:
                make(hosts, run, java)
            except Exception as error:
                if interrupted(error):
                    raise SystemExit(143) from error
                print(f"{run.name}: {error!r}", file=sys.stderr, flush=True)
                return list(todo[place + 1 :])
    return []


def make(hosts: Hosts, run: Run, java: str) -> None:
    """Make one run: three applications with its fault, then its label."""
    folder = FOLDER / run.name
    shutil.rmtree(folder, ignore_errors=True)
    began = time.time()
    with faults.fault(hosts, run.scenario, run.faulty, run.seed):
        done = [run_application(hosts, run, number, folder, java) for number in range(len(run.applications))]
    hosts.clear_disks()
    shutil.rmtree(folder / "input")
    label = {
        "run": run.name,
        "seed": run.seed,
        "scenario": run.scenario,
        "shape": run.shape,
        "faulty": run.faulty,
        "fault": faults.describe(run.scenario, run.seed),
        "hosts": list(hosts.hosts),
        "share": SHARE,
        "began": int(began * 1000),
        "seconds": round(time.time() - began, 1),
        "applications": done,
        "versions": {"spark": version("pyspark"), "python": ".".join(map(str, sys.version_info[:3])), "java": _java()},
    }
    partial = folder / "label.partial"
    partial.write_text(json.dumps(label, indent=1) + "\n", encoding="utf-8")
    partial.rename(folder / "label.json")


def _java() -> str:
    output = subprocess.run(["java", "--version"], capture_output=True, text=True, check=False).stdout
    return output.partition("\n")[0]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that mounts, groups and processes are removed
    with suppress(KeyboardInterrupt):
        collect(sys.argv[1:])
