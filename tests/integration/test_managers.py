"""Managers as processes on a real service: files, commands, acknowledgements, restarts.

A script replaces `yarn`: it records its arguments and the entries of the file.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from blocklist import BlockAction, BlocklistClient
from tests.integration.manager_process import ManagerProcess, acked_revision, refused_reason, run_module
from tests.integration.process import ServiceProcess, free_port, wait_until

EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


class Script:
    """A shell script with this body; `calls` are the lines that it recorded."""

    def __init__(self, path: Path, body: str) -> None:
        self.path = path
        self.record_file = path.with_suffix(".notes")
        path.write_text(f"#!/bin/sh\nnotes={self.record_file}\n{body}\n")
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self.record_file.read_text().splitlines() if self.record_file.exists() else []


@pytest.fixture
def yarn(tmp_path: Path) -> Script:
    """It fails while the file `broken` exists."""
    body = f'echo "$@" $(grep -v "^#" {tmp_path}/exclude) >> $notes; test ! -e {tmp_path}/broken'
    return Script(tmp_path / "yarn", body)


@pytest.fixture
def exclude(tmp_path: Path) -> Path:
    file = tmp_path / "exclude"
    file.write_text("# by hand\nold-1\n")
    file.chmod(0o640)
    return file


def yarn_manager(folder: Path, service: ServiceProcess, yarn: Script, *options: str) -> ManagerProcess:
    file = ("--exclude-file", str(folder / "exclude"), "--command", f"{yarn.path} rmadmin -refreshNodes")
    return ManagerProcess(folder, service.url, "yarn", *file, *options)


def test_yarn_follows_the_list_and_leaves_the_rest_of_the_file(
    tmp_path: Path, fresh: ServiceProcess, yarn: Script, exclude: Path
) -> None:
    original = exclude.read_bytes()
    with yarn_manager(tmp_path, fresh, yarn) as manager, BlocklistClient(fresh.url) as client:
        wait_until(lambda: acked_revision(fresh, "yarn") == 0)
        client.block("n1", "Hot machine")
        client.block("n2", "Disk errors", action=EVACUATE)
        wait_until(lambda: acked_revision(fresh, "yarn") == 2)
        assert yarn.calls[-1] == "rmadmin -refreshNodes -g -server old-1 n1 n2"
        assert exclude.stat().st_mode & 0o777 == 0o640
        wait_until(lambda: "a plain exclude file has no timeouts" in (refused_reason(fresh, "n2") or ""))
        client.unblock("n1")
        client.unblock("n2")
        wait_until(lambda: acked_revision(fresh, "yarn") == 4)
        assert yarn.calls[-1].endswith("-server old-1")
        assert exclude.read_bytes() == original
        assert manager.stop() == 0
        assert acked_revision(fresh, "yarn") == -1, "unregistered"
    for sentence in ("Node n1 is blocked without end (Hot machine)", "Node n1 is no longer blocked."):
        assert sentence in manager.log()


def test_an_entry_of_others_in_the_exclude_file_is_reported_as_drift(
    tmp_path: Path, fresh: ServiceProcess, yarn: Script, exclude: Path
) -> None:
    with yarn_manager(tmp_path, fresh, yarn), BlocklistClient(fresh.url) as client:
        wait_until(lambda: [(each.node, each.kind) for each in client.drift().drift] == [("old-1", "unschedulable")])
        client.block("old-1", "Hot machine")
        wait_until(lambda: client.drift().drift == [])


def test_a_block_ends_on_time_without_the_service(
    tmp_path: Path, fresh: ServiceProcess, yarn: Script, exclude: Path
) -> None:
    with yarn_manager(tmp_path, fresh, yarn), BlocklistClient(fresh.url) as client:
        end = time.time_ns() // 1_000_000 + 3_000
        client.block("n1", "Hot machine", end=end)
        wait_until(lambda: "n1" in exclude.read_text())
        fresh.kill()
        wait_until(lambda: "n1" not in exclude.read_text())
        assert time.time_ns() // 1_000_000 >= end


def test_a_failure_is_retried_and_acknowledged_only_after_success(
    tmp_path: Path, fresh: ServiceProcess, yarn: Script, exclude: Path
) -> None:
    with yarn_manager(tmp_path, fresh, yarn) as manager, BlocklistClient(fresh.url) as client:
        wait_until(lambda: "Reconciled with the list." in manager.log())
        (tmp_path / "broken").touch()
        client.block("n1", "Hot machine")
        wait_until(lambda: len([call for call in yarn.calls if call.endswith("old-1 n1")]) >= 2)
        assert acked_revision(fresh, "yarn") == 0
        (tmp_path / "broken").unlink()
        wait_until(lambda: acked_revision(fresh, "yarn") == 1)
    assert "failed with exit code 1" in manager.log()
    assert "Reconciled with the list again." in manager.log()


def test_a_killed_manager_resumes_after_a_restart(
    tmp_path: Path, fresh: ServiceProcess, yarn: Script, exclude: Path
) -> None:
    """Killed after the file was written and before the command: the command runs although the file is up to date."""
    (tmp_path / "broken").touch()
    with yarn_manager(tmp_path, fresh, yarn) as manager, BlocklistClient(fresh.url) as client:
        client.block("n1", "Hot machine")
        client.block("n2", "Hot machine")
        wait_until(lambda: bool(yarn.calls) and yarn.calls[-1].endswith("n1 n2"))
        manager.kill()
        (tmp_path / "broken").unlink()
        client.unblock("n1")
        client.block("n1", "Hot machine")
        count = len(yarn.calls)
        manager.start()
        wait_until(lambda: acked_revision(fresh, "yarn") == 4)
        assert yarn.calls[count:] == ["rmadmin -refreshNodes -g -server old-1 n1 n2"]
        manager.kill()
        client.unblock("n1")
        manager.start()
        wait_until(lambda: acked_revision(fresh, "yarn") == 5)
        assert yarn.calls[-1].endswith("old-1 n2")


def test_a_manual_change_is_found_and_corrected(
    tmp_path: Path, fresh: ServiceProcess, yarn: Script, exclude: Path
) -> None:
    """The next reconciliation restores an entry that was removed by hand."""
    with yarn_manager(tmp_path, fresh, yarn, "--every", "0.2"), BlocklistClient(fresh.url) as client:
        client.block("n1", "Hot machine")
        wait_until(lambda: acked_revision(fresh, "yarn") == 1)
        exclude.write_text("old-1\nold-2\n")
        wait_until(lambda: yarn.calls[-1].endswith("old-1 old-2 n1"))


def test_a_second_manager_with_the_same_id_takes_over(
    tmp_path: Path, fresh: ServiceProcess, yarn: Script, exclude: Path
) -> None:
    (tmp_path / "second").mkdir()
    options = ("--exclude-file", str(exclude), "--command", str(yarn.path))
    with yarn_manager(tmp_path, fresh, yarn) as first:
        wait_until(lambda: acked_revision(fresh, "yarn") == 0)
        with ManagerProcess(tmp_path / "second", fresh.url, "yarn", *options), BlocklistClient(fresh.url) as client:
            client.block("n1", "Hot machine")
            wait_until(lambda: acked_revision(fresh, "yarn") == 1)
            assert first.exit_code() == 1
    assert "Another process has taken over as listener yarn" in first.log()


class TestXml:
    def test_a_node_that_is_evacuated_has_a_timeout_of_its_own(
        self, tmp_path: Path, fresh: ServiceProcess, yarn: Script
    ) -> None:
        with BlocklistClient(fresh.url) as client:
            client.block("n1", "Hot machine")
            client.block("n2", "Disk errors", action=EVACUATE)
        file = tmp_path / "exclude.XML"
        (tmp_path / "exclude").touch()
        given = ("--url", fresh.url, "--exclude-file", str(file), "--command", str(yarn.path))
        done = run_module("blocklist.managers", "yarn", *given, "--evacuate-after", "30", "--once")
        assert done.returncode == 0, done.stderr
        assert "<host><name>n1</name><timeout>-1</timeout></host>" in file.read_text()
        assert "<host><name>n2</name><timeout>30</timeout></host>" in file.read_text()
        assert "running containers are stopped after 30 s" in done.stdout
        assert yarn.calls == ["-g -server"]


class TestExec:
    @pytest.fixture
    def command(self, tmp_path: Path) -> Script:
        """Records its standard input and prints the file `answer`; fails while the file `broken` exists."""
        body = f"cat >> $notes; echo >> $notes; cat {tmp_path}/answer 2>&1; test ! -e {tmp_path}/broken"
        return Script(tmp_path / "attach", body)

    def exec_manager(self, folder: Path, service: ServiceProcess, *command: str) -> ManagerProcess:
        return ManagerProcess(folder, service.url, "exec", "--state", str(folder / "done.json"), "--", *command)

    def test_the_command_gets_the_plan_and_can_refuse(
        self, tmp_path: Path, fresh: ServiceProcess, command: Script
    ) -> None:
        (tmp_path / "answer").write_text('{"refused": {"n2": "There is no such node.", "n9": "Not asked for."}}')
        with self.exec_manager(tmp_path, fresh, str(command.path)) as manager, BlocklistClient(fresh.url) as client:
            with client.watch() as watch:
                next(watch)
                client.block("n1", "Hot machine")
                client.block("n2", "Disk errors", action=EVACUATE)
            wait_until(lambda: acked_revision(fresh, "exec") == 2)
            received = [(step["do"], step["id"]) for call in command.calls for step in json.loads(call)["steps"]]
            assert received == [("block", "n1"), ("evacuate", "n2")]
            assert [node["id"] for node in json.loads(command.calls[-1])["blocked"]] == ["n1", "n2"]
            wait_until(lambda: refused_reason(fresh, "n2") == "There is no such node.")
            assert refused_reason(fresh, "n1") is None
            manager.kill()
            client.unblock("n1")
            manager.start()
            wait_until(lambda: acked_revision(fresh, "exec") == 3)
            assert [step["do"] for step in json.loads(command.calls[-1])["steps"]] == ["free"]
            assert refused_reason(fresh, "n2") == "There is no such node.", "after a restart too"
        assert "There is no such node." in manager.log()

    def test_a_failure_is_retried(self, tmp_path: Path, fresh: ServiceProcess, command: Script) -> None:
        (tmp_path / "broken").touch()
        (tmp_path / "answer").write_text("the gate is closed\n" * 10_000)
        with self.exec_manager(tmp_path, fresh, str(command.path)) as manager, BlocklistClient(fresh.url) as client:
            client.block("n1", "Hot machine")
            wait_until(lambda: len(command.calls) >= 2)
            assert acked_revision(fresh, "exec") <= 0
            (tmp_path / "broken").unlink()
            wait_until(lambda: acked_revision(fresh, "exec") == 1)
        assert "exit code 1. Output: the gate is closed the gate" in manager.log()
        assert len(manager.log()) < 20_000, "the logged output is limited"

    def test_a_command_that_exceeds_its_timeout_is_killed(self, tmp_path: Path, fresh: ServiceProcess) -> None:
        """Its child processes are killed too."""
        hanging = Script(tmp_path / "hang", "sleep 1000 & echo $! >> $notes; wait")
        with BlocklistClient(fresh.url) as client:
            client.block("n1", "Hot machine")
        state = ("--state", str(tmp_path / "done.json"))
        done = run_module(
            "blocklist.managers", "exec", "--url", fresh.url, "--once", "--timeout", "0.5", *state, str(hanging.path)
        )
        assert done.returncode == 1
        assert "did not end within 0.5 s and was killed" in done.stderr
        wait_until(lambda: not is_alive(int(hanging.calls[0])))
        assert not (tmp_path / "done.json").exists()


def is_alive(process: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class TestOperators:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ([], "the following arguments are required: yarn|slurm|kubernetes|exec"),
            (["yarn"], "Name the ResourceManager: --resource-manager http://rm:8088"),
            (["yarn", "--by", "exclude-file"], "Name YARN's exclude file: --exclude-file FILE."),
            (["yarn", "--resource-manager", "rm:8088"], "'rm:8088' is not a URL such as http://rm:8088"),
            (["yarn", "--kerberos", "--resource-manager", "http://rm"], "--kerberos needs the package httpx-gssapi"),
            (["yarn", "--kerberos", "--user", "ann"], "Give --user or --kerberos, not both"),
            (["yarn", "--label", "a b", "--resource-manager", "http://rm"], "'a b' is not the name of a node label"),
            (["yarn", "--exclude-file", "/no/such/file"], "Folder /no/such does not exist."),
            (["yarn", "--exclude-file", "/tmp"], "/tmp is a folder; name a file."),
            (["yarn", "--exclude-file", "/tmp/x", "--command", "no-yarn x"], "Command no-yarn was not found."),
            (["yarn", "--graceful", "-2"], "give whole seconds, or -1 for no timeout"),
            (["yarn", "--evacuate-after", "soon"], "give whole seconds, or -1 for no timeout"),
            (["yarn", "--every", "0"], "give a number of seconds above 0"),
            (["yarn", "--url", "example.com", "--print"], "'example.com' is not the URL of a service"),
            (["slurm", "--command", "no-scontrol"], "Command no-scontrol was not found."),
            (["exec", "--state", "/tmp/x"], "Name the command to run."),
            (["exec", "--id", "a b", "--state", "/tmp/x", "true"], "'a b' is not a node id"),
        ],
    )
    def test_a_usage_error_is_a_sentence(self, arguments: list[str], sentence: str) -> None:
        done = run_module("blocklist.managers", *arguments)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr

    def test_an_unreachable_service_is_a_sentence(self, tmp_path: Path) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        for module, arguments in (("blocklist.managers", ["yarn", "--print"]), ("blocklist.spark", ["conf"])):
            done = run_module(module, *arguments, "--url", url)
            assert done.returncode == 1
            assert f"{url} is out of reach" in done.stderr
            assert "Traceback" not in done.stderr

    def test_a_dry_run_prints_the_plan_and_changes_nothing(
        self, tmp_path: Path, fresh: ServiceProcess, yarn: Script, exclude: Path
    ) -> None:
        before = exclude.read_bytes()
        options = ("--url", fresh.url, "--exclude-file", str(exclude), "--command", str(yarn.path), "--dry-run")
        assert run_module("blocklist.managers", "yarn", *options).stdout == "No changes.\n"
        with BlocklistClient(fresh.url) as client:
            client.block("n1", "Hot machine")
        assert "Node n1 is blocked without end" in run_module("blocklist.managers", "yarn", *options).stdout
        assert (exclude.read_bytes(), yarn.calls) == (before, [])


def test_the_configuration_of_a_spark_submit(tmp_path: Path, fresh: ServiceProcess) -> None:
    """PySpark is not imported: that takes a second, and it may not be installed."""
    with BlocklistClient(fresh.url) as client:
        client.block("n1", "Hot machine")
        client.block("2001:db8::1", "Hot machine")
    no_spark = tmp_path / "no-spark"
    no_spark.mkdir()
    (no_spark / "pyspark.py").write_text("raise ImportError('PySpark was imported')\n")
    more = {"BLOCKLIST_URL": fresh.url, "PYTHONPATH": str(no_spark)}
    printed = run_module("blocklist.managers", "yarn", "--print", **more)
    assert (printed.returncode, printed.stdout) == (0, "spark.yarn.exclude.nodes=2001:db8::1,n1\n"), printed.stderr
    template = tmp_path / "pod.yaml"
    confs = run_module("blocklist.spark", "conf", "--pod-template", str(template), **more)
    assert confs.returncode == 0, confs.stderr
    assert confs.stdout.splitlines() == [
        "spark.yarn.exclude.nodes=2001:db8::1,n1",
        f"spark.kubernetes.driver.podTemplateFile={template}",
        f"spark.kubernetes.executor.podTemplateFile={template}",
    ]
    assert '- "n1"' in template.read_text()
    assert "omitted from the template: 2001:db8::1." in confs.stderr
    arguments = run_module("blocklist.spark", "conf", "--form", "arguments", **more)
    assert arguments.stdout == "--conf spark.yarn.exclude.nodes=2001:db8::1,n1\n"


def test_the_command_runs_managers_with_the_service_of_its_context(tmp_path: Path, fresh: ServiceProcess) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    assert run_module("blocklist.cli", "config", "set", "test", "url", fresh.url, **home).returncode == 0
    with BlocklistClient(fresh.url) as client:
        client.block("n1", "Hot machine")
    manager = ("manager", "exec", "--state", str(tmp_path / "state"), "--dry-run", "true")
    done = run_module("blocklist.cli", "--context", "test", *manager, **home)
    assert done.stdout == "Node n1 is blocked without end (Hot machine).\n"
    done = run_module("blocklist.cli", "--context", "test", "manager", "kubernetes", "--context", "other", **home)
    assert done.returncode == 2
    assert "usage: blocklist manager" in done.stderr
    assert "Name the cluster: --kubeconfig FILE" in done.stderr


@pytest.mark.parametrize(("command", "stops_at"), [("flink", "py4j"), ("manager", "blocklist.managers.__main__")])
def test_a_token_of_the_environment_is_not_handed_to_the_service_of_a_context_with_its_own(
    command: str, stops_at: str, tmp_path: Path
) -> None:
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    for key, value in (("url", "http://127.0.0.1:1"), ("token_file", "/own.token")):
        assert run_module("blocklist.cli", "config", "set", "test", key, value, **home).returncode == 0
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {stops_at!r}:\n"
        "            names = ('URL', 'TOKEN', 'TOKEN_FILE')\n"
        "            sys.exit(str([os.environ.get('BLOCKLIST_' + name) for name in names]))\n"
        "sys.meta_path.insert(0, Stop())\n"
    )
    (tmp_path / "flink-dist-2.3.0.jar").touch()
    (tmp_path / "config.yaml").touch()
    folders = ("--conf-dir", str(tmp_path), "--lib", str(tmp_path)) if command == "flink" else ()
    more = {**home, "BLOCKLIST_TOKEN": "of-another-service", "PYTHONPATH": str(tmp_path)}
    done = run_module("blocklist.cli", command, *folders, **more)
    assert done.stderr == "['http://127.0.0.1:1', None, '/own.token']\n"
