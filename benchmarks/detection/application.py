"""Runs one application of a run: on throttled hosts, with its fault, an event log and a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.detection import faults, jobs
from benchmarks.detection.hosts import Hosts
from benchmarks.detection.scenarios import Application, Run
from demo import event_log
from demo.cluster import session

LIMIT: Final = 300.0  # maximum seconds of an application's warm-up and work
SECONDS: Final = 60.0  # minimum seconds of its work: its jobs are repeated until then

# One executor per host, so one bad executor makes a bad host; otherwise the defaults of Spark.
EXCLUDING: Final[dict[str, object]] = {
    "spark__excludeOnFailure__enabled": "true",
    "spark__excludeOnFailure__application__maxFailedExecutorsPerNode": 1,
    "spark__excludeOnFailure__stage__maxFailedExecutorsPerNode": 1,
}


def run_application(hosts: Hosts, run: Run, number: int, folder: Path, java: str) -> dict[str, Any]:
    """Run one application; `java` are additional Java options of the executors. Returns its part of the label."""
    application = run.applications[number]
    data, warm = folder / "input" / str(number), folder / "input" / f"warm-{number}"
    jobs.write_input(data, application, run.seed * 10 + number)
    jobs.write_input(warm, Application(kind="", files=(50,) * 18, work=1, reducers=12, hot=0), run.seed)
    hosts.unthrottle()
    spark = session(hosts, **_conf(hosts, application, folder / "logs", java))
    try:
        with _time_limited(spark.sparkContext):
            jobs.warm_up(spark.sparkContext, warm)
            hosts.throttle(run.faulty, faults.SPEED.get(run.scenario, 1.0))
            started = time.monotonic()
            with faults.fault_of_application(hosts, run.scenario, run.faulty, run.seed * 10 + number, spark):
                outcome = _outcome(spark.sparkContext, data, application)
        seconds = round(time.monotonic() - started, 1)
        name = spark.sparkContext.applicationId
        return {"id": name, "seconds": seconds, "outcome": outcome, **asdict(application)}
    finally:
        hosts.unthrottle()
        spark.stop()


def _conf(hosts: Hosts, application: Application, logs: Path, java: str) -> dict[str, object]:
    return {
        **event_log.conf(logs),
        **EXCLUDING,
        "spark__app__name": application.kind,
        "spark__executor__extraJavaOptions": f"{hosts.conf()['spark.executor.extraJavaOptions']} {java}",
        # With only six hosts, it would run all tasks after a shuffle on the one or two with most map output.
        "spark__shuffle__reduceLocality__enabled": "false",
        "spark__blockManager__port": faults.BLOCK_MANAGER_PORT,
    }


def _outcome(sc: Any, data: Path, application: Application) -> str:
    """Run the jobs, again and again for a minute; a failure is part of some scenarios, or caused by the fault."""
    until = time.monotonic() + SECONDS
    try:
        jobs.perform(sc, data, application)
        while time.monotonic() < until:
            jobs.perform(sc, data, application)
    except Exception as error:
        if interrupted(error):
            raise
        return f"{type(error).__name__}: {str(error).strip()[:300]}"
    return "finished"


@contextmanager
def _time_limited(sc: Any) -> Iterator[None]:
    """Cancel jobs that run longer than the limit."""
    timer = threading.Timer(LIMIT, sc.cancelAllJobs)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def interrupted(error: BaseException | None) -> bool:
    """Whether a signal caused the error: what it interrupts fails in other ways too."""
    while error is not None:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            return True
        error = error.__context__
    return False
