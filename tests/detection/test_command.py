"""`python -m blocklist.detection` as operators run it, with a real service.

Tests that do not depend on the process call `main` here: a Spark session per call takes half a minute.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyarrow.parquet as pq
import pytest

from blocklist import BlockAction, BlocklistClient
from blocklist.detection.__main__ import main
from blocklist.detection.schemas import FAILURES, HOST_STAGES, NODES
from tests.detection.command import Command, DryRun, now, run, settings
from tests.detection.synthetic_logs import HOSTS, event_log, on_pods
from tests.integration.labels import report_addresses, report_labels
from tests.integration.process import ROOT, ServiceProcess, free_port, wait_until

ADDRESSES = {host: f"10.9.0.{host[1:]}" for host in HOSTS}
CAUSE = re.compile(
    r"2\.[0-9]x slower than its peers in [0-9]+ of [0-9]+ stages of [23] applications"
    r" \(95 %: [12]\.[0-9]x to [23]\.[0-9]x\) since 20[0-9-]+ [0-9:]+ \(app-0\);"
    r" [0-9.]+ core-hours lost \([0-9.]+ of app-[0-2]( \+ [0-9.]+ of app-[0-2])+\)"
    r"; ends early once 2 applications over 6 minutes find it as good as its peers"
)


@pytest.mark.timeout(1800)
def test_a_dry_run_proposes_and_apply_is_idempotent(
    proposed: DryRun, fresh: ServiceProcess, run_command: Command
) -> None:
    """A dry run reports and changes nothing; --apply blocks; a second --apply changes nothing."""
    out, err = proposed.done.stdout, proposed.done.stderr
    (line,) = [json.loads(text) for text in proposed.lines.read_text().splitlines()]
    assert (line["node"], line["severity"], line["applied"], line["whyNot"]) == ("n3", line["severity"], False, None)
    assert CAUSE.fullmatch(line["cause"])
    assert line["cause"] in out
    assert f"file:{proposed.logs}/notes.txt is not an event log" in err
    assert "app-2: 1 broken line was skipped" in err
    assert "Traceback" not in err
    for name, columns in (("nodes", NODES), ("host_stages", HOST_STAGES), ("failures", FAILURES)):
        assert pq.read_table(proposed.parquet / name).column_names == list(columns)

    arguments = ["--event-logs", str(proposed.logs), "--url", fresh.url, "--apply", "--json", "-"]
    _, out, _ = run_command(*arguments)
    untrusted = json.loads(out)
    assert not untrusted["applied"]
    assert untrusted["whyNot"].startswith("all its evidence is in logs of one file owner")
    arguments.append("--trust-logs")
    applied = [run_command(*arguments) for _ in range(2)]
    first, second = (json.loads(out) for _, out, _ in applied)
    assert (first["applied"], first["whyNot"]) == (True, None)
    assert (second["applied"], second["whyNot"]) == (False, "the node is already blocked for this")
    assert (first["cause"], first["end"]) == (second["cause"], second["end"]) == (line["cause"], line["end"])
    with BlocklistClient(fresh.url) as client:
        snapshot = client.snapshot()
        assert (snapshot.revision, list(snapshot.nodes)) == (1, ["n3"])
        node = snapshot.nodes["n3"]
        assert (node.cause, node.end, node.action) == (line["cause"], line["end"], BlockAction[line["action"]])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("slow", [None, "n3"], ids=["clean", "slow"])
def test_the_executor_that_a_canary_leaves_shows_whether_the_node_has_recovered(
    proposed: DryRun, fresh: ServiceProcess, run_command: Command, tmp_path: Path, slow: str | None
) -> None:
    """Its few tasks are enough, both to remove the claim and to extend it."""
    rules = tmp_path / "rules.toml"
    rules.write_text("canary = true")
    arguments = ("--url", fresh.url, "--apply", "--trust-logs", "--rules", str(rules), "--json", "-")
    _, out, _ = run_command("--event-logs", str(proposed.logs), *arguments)
    assert json.loads(out)["canary"] is True
    with BlocklistClient(fresh.url) as client:
        before = client.get("n3")
        assert before.canary
        for number in range(3):
            lines = event_log(f"later-{number}", now() + number * 400_000, slow=slow, canary="n3")
            (tmp_path / f"later-{number}").write_text("".join(lines))
        logs = [str(path) for path in tmp_path.glob("later-*")]
        _, out, _ = run_command("--event-logs", str(proposed.logs), *logs, *arguments)
        (line,) = [json.loads(text) for text in out.splitlines()]
        if slow is None:
            assert (line["released"], line["applied"], len(line["cleanApplications"])) == (True, True, 2)
            assert client.snapshot().nodes == {}
        else:
            assert (line["canary"], line["applied"]) == (True, True)
            after = client.get("n3")
            assert after.canary
            assert after.end > before.end


def test_forged_logs_block_no_more_than_the_share_of_the_known_nodes(
    fresh: ServiceProcess, run_command: Command, tmp_path: Path
) -> None:
    """However many hosts they invent, beside which all real ones are slow. A link in them is not read either."""
    # Hosts that were always alike are slower by design, and what happens within minutes may have passed.
    real = {f"w{number}": 2 * 1.25**number for number in range(20)}
    secret = tmp_path / "token"
    secret.write_text("blt_secret\n")
    logs = tmp_path / "logs"
    (logs / "eventlog_v2_app-9").mkdir(parents=True)
    (logs / "eventlog_v2_app-9" / "events_1_app-9").symlink_to(secret)
    for number in range(4):
        hosts = [*real, *(f"x{invented}" for invented in range(400))]
        lines = event_log(
            f"app-{number}", now() - 9_000_000 + number * 2_000_000, slow=real if number else {}, hosts=hosts
        )
        (logs / f"app-{number}").write_text("".join(lines))
    html = tmp_path / "report.html"
    with fresh.client() as http:
        report_labels(http, {host: {} for host in real}, lease=600)
        code, out, err = run_command(
            "--event-logs", str(logs), "--url", fresh.url, "--apply", "--trust-logs", "--html", str(html)
        )
    assert code == 0, err
    with BlocklistClient(fresh.url) as client:
        assert len(client.snapshot().nodes) == 2, out
    assert out.count("one run blocks at most 2 of 20 nodes") > 10
    assert "events_1_app-9 is skipped: it is a link." in err
    assert "blt_secret" not in out + err + html.read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "one of the arguments --event-logs --tasks is required"),
        (["--event-logs", "/x", "--since", "yesterday"], "'yesterday' is not a time; write it as 2026-11-21T12:00"),
        (["--event-logs", "/x", "--alarm-rate", "2"], "must be a number above 0 and at most 1"),
        (["--event-logs", "/x", "--hours", "0"], "must be hours, above 0 and at most 168"),
        (["--event-logs", "/x", "--applications", "x"], "must be an integer from 1 to 1000"),
        (["--event-logs", "/x", "--follow"], "--follow requires --checkpoint FOLDER."),
        (["--event-logs", "/x", "--checkpoint", "/y"], "--checkpoint requires --follow."),
        (
            ["--event-logs", "hdfs://x/y", "--follow", "--checkpoint", "/y"],
            "--follow reads folders of this machine, not hdfs://x/y.",
        ),
        (["--tasks", "hdfs://x/y"], "--tasks reads folders of this machine, not hdfs://x/y."),
        (["--tasks", "/x", "--event-logs", "/y"], "not allowed with argument"),
        (
            ["--tasks", "/x", "--follow", "--checkpoint", "/y"],
            "--follow reads event logs: it cannot be combined with --tasks.",
        ),
        (["--event-logs", "/x", "--apply", "--dry-run"], "not allowed with argument"),
        (["--event-logs", "/x", "--rules", "/missing.toml", "--hours", "0"], "must be hours, above 0 and at most 168"),
        (["--event-logs", "/x", "--group-label", "machine"], "The group label 'machine' is one of the service's"),
        (["backtest"], "one of the arguments --event-logs --tasks is required"),
        (["--event-logs", "/x", "--url", "example.com"], "'example.com' is not the URL of a service"),
    ],
)
def test_a_usage_error_is_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_the_process_ends_with_the_code_and_the_sentence() -> None:
    done = run("--event-logs", "/x", "--follow")
    assert done.returncode == 2
    assert "--follow requires --checkpoint FOLDER." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_host_is_compared_with_those_of_its_group(proposed: DryRun, run_command: Command) -> None:
    _, out, _ = run_command("--event-logs", str(proposed.logs), "--group", "small=n?", "--json", "-")
    assert [json.loads(line)["node"] for line in out.splitlines()] == ["n3"]


def test_a_host_is_compared_with_those_of_the_same_label(
    proposed: DryRun, fresh: ServiceProcess, run_command: Command, tmp_path: Path
) -> None:
    """The label is in a file of rules; its value is in the service's inventory: no other host is of its kind."""
    kinds = {host: {"machine": "old" if host == "n3" else "new"} for host in HOSTS}
    rules = tmp_path / "rules.toml"
    rules.write_text("group-label = 'machine'")
    with fresh.client() as http:
        report_labels(http, kinds)
        arguments = ("--event-logs", str(proposed.logs), "--rules", str(rules), "--url", fresh.url, "--json", "-")
        code, out, err = run_command(*arguments)
    assert (code, out) == (0, ""), err


def test_without_logs_there_is_a_message_and_no_verdict(tmp_path: Path, run_command: Command) -> None:
    (tmp_path / "empty").mkdir()
    html = tmp_path / "report.html"
    code, out, err = run_command(
        "--event-logs", str(tmp_path / "empty"), str(tmp_path / "missing"), "--html", str(html)
    )
    assert "No events were read." in html.read_text()
    assert "missing cannot be read" in html.read_text()
    assert (code, out) == (1, "No nodes to block.\n"), err
    assert f"{tmp_path}/empty contains no event log." in err
    assert f"{tmp_path}/missing cannot be read: " in err


def test_an_unreachable_service_is_an_error_message(proposed: DryRun, run_command: Command) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, _, err = run_command("--event-logs", str(proposed.logs), "--url", url, "--apply", "--trust-logs")
    assert code == 1
    assert f"{url} is out of reach" in err


class Following:
    """The command with --follow, in a process of its own; `reported` are the nodes that it wrote as JSON lines."""

    def __init__(self, logs: Path, checkpoint: Path, url: str) -> None:
        self._lines = checkpoint.with_suffix(".jsonl")
        arguments = (
            "--event-logs",
            str(logs),
            "--checkpoint",
            str(checkpoint),
            "--url",
            url,
            "--apply",
            "--trust-logs",
        )
        self._command = [
            sys.executable,
            "-m",
            "blocklist.detection",
            "--follow",
            *arguments,
            "--json",
            str(self._lines),
        ]
        self._out, self._err = checkpoint.with_suffix(".out"), checkpoint.with_suffix(".err")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self._process = subprocess.Popen(self._command, cwd=ROOT, env=settings(), stdout=out, stderr=err)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) in {0, -signal.SIGKILL}, self._err.read_text()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)

    def start(self) -> None:
        self.__enter__()

    def reported(self) -> list[str]:
        lines = self._lines.read_text().splitlines() if self._lines.exists() else []
        return [json.loads(line)["node"] for line in lines]

    def errors(self) -> str:
        return self._err.read_text()

    def near_misses(self) -> list[str]:
        return [line for line in self._out.read_text().splitlines() if line.startswith("Node ")]


@pytest.mark.timeout(1800)
def test_follow_mode_analyses_running_applications_and_continues_after_a_restart(
    tmp_path: Path, fresh: ServiceProcess
) -> None:
    logs, checkpoint = tmp_path / "logs", tmp_path / "checkpoint"
    logs.mkdir()
    # What lasts less than six minutes is not blamed.
    started_at = now() - 900_000
    # Pods that use their node's network: the inventory knows the nodes.
    first = "".join(on_pods(event_log("app-1", started_at, slow="n3"), ADDRESSES))
    second = "".join(on_pods(event_log("app-2", started_at + 450_000, slow="n3"), ADDRESSES))
    (logs / "app-1").write_text(first)
    (logs / "notes.txt").write_text("Ask Kim about rack 7.\n")
    with fresh.client() as http:
        report_addresses(http, ADDRESSES)
    running = logs / "app-2.inprogress"
    with Following(logs, checkpoint, fresh.url) as following, BlocklistClient(fresh.url) as client:
        # Ends in the middle of a line; the evidence of one application is not sufficient.
        running.write_text(second[: len(second) // 20])
        read = checkpoint / "stream" / "commits" / "0"
        wait_until(read.exists, seconds=600)
        wait_until(lambda: len(following.near_misses()) == 1)
        assert following.near_misses()[0].startswith("Node n3 is not blamed (2.")
        assert following.near_misses()[0].endswith("): only 1 of at least 2 applications.")
        assert following.reported() == []
        following.kill()
        running.write_text(second[: len(second) // 2])
        following.start()
        wait_until(lambda: following.reported() == ["n3"], seconds=600)
        assert list(client.snapshot().nodes) == ["n3"]
    running.write_text(second)
    running.rename(logs / "app-2")
    commits = len(list((checkpoint / "stream" / "commits").glob("[0-9]*")))
    with following:
        wait_until(lambda: len(list((checkpoint / "stream" / "commits").glob("[0-9]*"))) > commits, seconds=600)
    assert following.reported() == ["n3"], "once"
    assert len(following.near_misses()) == 1, "once, though the process was killed"
    skipped = f"{logs}/notes.txt is skipped: it does not begin with an event."
    assert following.errors().count(skipped) == 1, "once, though the process was killed"
