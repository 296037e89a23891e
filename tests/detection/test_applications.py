"""Applications and nodes are identified by what their logs say, not by the names of files and addresses of pods."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

from blocklist.detection.analysis import analysed
from blocklist.detection.log_discovery import discover
from blocklist.detection.reader import read_facts
from tests.detection.synthetic_logs import HOSTS, event_log, on_pods

BEGAN = 1_700_000_000_000
UNKNOWN = "its logs have several owners, and the original is unknown"


def analyse(spark: SparkSession, folder: Path, nodes: dict[str, str] | None = None) -> tuple[set[str], set[str], str]:
    """The applications and hosts of the tasks, and what was left out."""
    found = discover(spark, [str(folder)])
    with analysed(read_facts(spark, found.logs), lambda: nodes or {}) as analysis:
        tasks = analysis.rows("SELECT DISTINCT app, host FROM all_facts WHERE kind = 'task'")
        problems = "\n".join([*found.problems, *analysis.problems])
    return {row["app"] for row in tasks}, {row["host"] for row in tasks}, problems


def test_an_application_has_its_id_whatever_its_files_are_called(spark: SparkSession, tmp_path: Path) -> None:
    """Two files with numbered names, one application in three copies, parts without a start, a log without an id."""
    (tmp_path / "event_log_0").write_text("".join(event_log("app-1", BEGAN)))
    (tmp_path / "event_log_1").write_text("".join(event_log("app-2", BEGAN)))
    shutil.copy(tmp_path / "event_log_1", tmp_path / "copy")
    (tmp_path / "old-copy").write_text("".join(event_log("app-2", BEGAN)[:40]) + "broken\n" * 10_000)
    parts = tmp_path / "cluster" / "8877"
    parts.mkdir(parents=True)
    lines = event_log("app-3", BEGAN)
    (parts / "eventlog-2026-11-20--10-00").write_text("".join(lines[1:30]))
    (parts / "eventlog").write_text("".join(lines[30:]))
    (tmp_path / "oldest").write_text("".join(event_log("app-4", BEGAN)[2:]))
    apps, _, problems = analyse(spark, tmp_path)
    assert apps == {"app-1", "app-2", "app-3", "oldest"}
    kept = f"file:{tmp_path}/copy"
    assert problems.splitlines() == [
        f"file:{tmp_path}/old-copy: 10,000 broken lines were skipped.",
        f"file:{tmp_path}/event_log_1 is skipped: a copy of {kept}, the log of application app-2.",
        f"file:{tmp_path}/old-copy is skipped: a copy of {kept}, the log of application app-2.",
    ]


def test_a_log_that_another_owner_has_copied_is_the_word_of_neither(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever can read a log can copy it and add lines: most of them do not decide."""
    lines = event_log("app-1", BEGAN)
    for name, own in {"app-1": lines, "copy": [*lines, lines[-1]], "app-2": event_log("app-2", BEGAN)}.items():
        (tmp_path / name).write_text("".join(own))
    facts = read_facts(spark, discover(spark, [str(tmp_path)]).logs)
    owners = {f"file:{tmp_path}/{name}": owner for name, owner in (("app-1", "ann"), ("copy", "bob"), ("app-2", "ann"))}
    with analysed(facts, owner_of=owners.get) as analysis:
        assert analysis.rows("SELECT DISTINCT app FROM all_facts") == [{"app": "app-2"}]
        assert analysis.problems == [
            f"Application app-1 is left out: {UNKNOWN}: file:{tmp_path}/app-1 and file:{tmp_path}/copy."
        ]
        assert analysis.log_owners() == {"app-2": "ann"}


def test_pods_are_reported_as_their_nodes_or_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """Four pods whose executors name their node, one that uses its node's network, one that is unknown."""
    pods = {host: f"10.1.0.{number}" for number, host in enumerate(HOSTS, 1)}
    nodes = {host: f"worker-{host[1:]}" for host in HOSTS[:4]}
    (tmp_path / "spark-1").write_text("".join(on_pods(event_log("spark-1", BEGAN), pods, nodes)))
    (tmp_path / "app-1").write_text("".join(event_log("app-1", BEGAN)))
    _, hosts, problems = analyse(spark, tmp_path, {"10.1.0.5": "worker-5"})
    assert hosts == {*HOSTS, *(f"worker-{number}" for number in range(1, 6))}
    assert problems.startswith("Pods of application spark-1 on unknown nodes are left out: 1.")


def test_pods_of_a_log_that_does_not_tell_its_master_are_not_taken_for_nodes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its line is damaged, or Spark has redacted it."""
    apps = [f"spark-{digit}10be3a8424d4a2789cb88134418217b" for digit in "12"]  # as only Spark on Kubernetes has them
    for app, master in zip(apps, (None, "*********(redacted)"), strict=True):
        lines = on_pods(event_log(app, BEGAN), {host: f"10.1.0.{host[1:]}" for host in HOSTS})
        (environment,) = [line for line in lines if "EnvironmentUpdate" in line]
        other = environment.replace("k8s://https://api", master) if master else environment[:60] + "\n"
        (tmp_path / app).write_text("".join(other if line == environment else line for line in lines))
    _, hosts, problems = analyse(spark, tmp_path)
    assert not hosts
    for app in apps:
        assert f"Pods of application {app} on unknown nodes are left out: 6." in problems
