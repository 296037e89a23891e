"""Managers as processes on a real service: commands, acknowledgements, restarts.

The exec manager stands for all: its command is a script that records what it receives.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from blocklist import BlockAction, BlocklistClient
from blocklist.client.session import ListenerSession
from blocklist.client.watch import WatchThread
from blocklist.errors import UnavailableError
from blocklist.managers.__main__ import main
from blocklist.managers.command import CommandOutput, Stopping
from blocklist.managers.exec import ExecManager
from blocklist.managers.kubernetes.manager import KubernetesManager
from blocklist.managers.kubernetes.nodes import KubernetesNode, NodeCache, list_nodes
from blocklist.managers.kubernetes.plan import OwnTaint, is_tainted
from blocklist.managers.kubernetes.running import DEFAULT_TAINT
from blocklist.managers.reconcile import ReconcileLoop
from blocklist.managers.slurm import SlurmManager
from blocklist.managers.yarn.manager import LabelManager
from blocklist.managers.yarn.node_names import AddressNames
from blocklist.managers.yarn.plan import MarkLabels
from blocklist.managers.yarn.resource_manager import Access, ResourceManager
from blocklist.model.listener import EMPTY_REPORT, ListenerRole, Registration, Report
from blocklist.wire.listeners import AppliedBody, KnownNodeBody
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService, RunningClock
from tests.integration.manager_process import ManagerProcess, acked_revision, refused_reason, run_module
from tests.integration.process import ServiceProcess, free_port, wait_until
from tests.unit.test_kubernetes_manager import ScriptedApi, node_body, patched
from tests.yarn.simulated import SimulatedYarn, serving

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
def command(tmp_path: Path) -> Script:
    """Records its standard input and prints the file `answer`; fails while the file `broken` exists."""
    body = f"cat >> $notes; echo >> $notes; cat {tmp_path}/answer 2>&1; test ! -e {tmp_path}/broken"
    (tmp_path / "answer").touch()
    return Script(tmp_path / "attach", body)


def exec_manager(folder: Path, service: ServiceProcess | InProcessService, command: Script) -> ManagerProcess:
    return ManagerProcess(folder, service.url, "exec", "--state", str(folder / "done.json"), "--", str(command.path))


def blocked(call: str) -> list[str]:
    """The ids of all blocked nodes in a plan that the command received."""
    return [node["id"] for node in json.loads(call)["blocked"]]


def steps(call: str) -> list[tuple[str, str]]:
    """What to do, and the id, of each step of a plan that the command received."""
    return [(step["do"], step["id"]) for step in json.loads(call)["steps"]]


class TestLoop:
    """What every manager does, shown by one whose command is a script."""

    def test_a_manager_follows_the_list_and_unregisters_at_its_end(
        self, tmp_path: Path, fresh: ServiceProcess, command: Script
    ) -> None:
        with exec_manager(tmp_path, fresh, command) as manager, BlocklistClient(fresh.url) as client:
            wait_until(lambda: acked_revision(fresh, "exec") == 0)
            client.block("n1", "Hot machine")
            client.block("n2", "Disk errors", action=EVACUATE)
            wait_until(lambda: acked_revision(fresh, "exec") == 2)
            assert blocked(command.calls[-1]) == ["n1", "n2"]
            client.unblock("n1")
            client.unblock("n2")
            wait_until(lambda: acked_revision(fresh, "exec") == 4)
            assert blocked(command.calls[-1]) == []
            manager.stop()
            assert acked_revision(fresh, "exec") == -1, "unregistered"
        for sentence in ("Node n1 is blocked without end (Hot machine)", "Node n1 is no longer blocked."):
            assert sentence in manager.log()

    def test_a_block_ends_on_time_without_the_service(
        self, tmp_path: Path, fresh: ServiceProcess, command: Script
    ) -> None:
        with exec_manager(tmp_path, fresh, command), BlocklistClient(fresh.url) as client:
            end = time.time_ns() // 1_000_000 + 3_000
            client.block("n1", "Hot machine", end=end)
            wait_until(lambda: command.calls != [])
            assert steps(command.calls[-1]) == [("block", "n1")]
            fresh.kill()
            wait_until(lambda: steps(command.calls[-1]) == [("free", "n1")])
            assert time.time_ns() // 1_000_000 >= end

    def test_a_failure_is_retried_and_acknowledged_only_after_success(
        self, tmp_path: Path, fresh: ServiceProcess, command: Script
    ) -> None:
        (tmp_path / "answer").write_text("the gate is closed\n" * 10_000)
        with exec_manager(tmp_path, fresh, command) as manager, BlocklistClient(fresh.url) as client:
            wait_until(lambda: "Reconciled with the list." in manager.log())
            (tmp_path / "broken").touch()
            client.block("n1", "Hot machine")
            wait_until(lambda: len(command.calls) >= 2)
            assert acked_revision(fresh, "exec") == 0
            (tmp_path / "broken").unlink()
            wait_until(lambda: acked_revision(fresh, "exec") == 1)
        assert "failed with exit code 1. Output: the gate is closed the gate" in manager.log()
        assert "Reconciled with the list again." in manager.log()
        assert len(manager.log()) < 20_000, "the logged output is limited"

    def test_a_killed_manager_resumes_after_a_restart(
        self, tmp_path: Path, fresh: ServiceProcess, command: Script
    ) -> None:
        (tmp_path / "broken").touch()
        with exec_manager(tmp_path, fresh, command) as manager, BlocklistClient(fresh.url) as client:
            client.block("n1", "Hot machine")
            client.block("n2", "Hot machine")
            wait_until(lambda: command.calls != [] and blocked(command.calls[-1]) == ["n1", "n2"])
            manager.kill()
            (tmp_path / "broken").unlink()
            client.unblock("n1")
            client.block("n1", "Hot machine")
            count = len(command.calls)
            manager.start()
            wait_until(lambda: acked_revision(fresh, "exec") == 4)
            assert [steps(call) for call in command.calls[count:]] == [[("block", "n1"), ("block", "n2")]]
            manager.kill()
            client.unblock("n1")
            manager.start()
            wait_until(lambda: acked_revision(fresh, "exec") == 5)
            assert steps(command.calls[-1]) == [("free", "n1")]

    def test_a_second_manager_with_the_same_id_takes_over(
        self,
        tmp_path: Path,
        start_in_process: StartInProcess,
        command: Script,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # that is for the main thread
        monkeypatch.setattr("blocklist.managers.reconcile._POLL_INTERVAL", 0.1)
        service = start_in_process(clock=RunningClock())
        state = ("--state", str(tmp_path / "first.json"))
        (tmp_path / "second").mkdir()

        def session() -> object:
            return service.client().get("/listeners/exec").json()["sessionId"]

        with ThreadPoolExecutor(1) as thread:
            first = thread.submit(main, ["exec", "--url", service.url, "--id", "exec", *state, "--", str(command.path)])
            wait_until(lambda: acked_revision(service, "exec") == 0)
            before = session()
            with exec_manager(tmp_path / "second", service, command), BlocklistClient(service.url) as client:
                wait_until(lambda: session() != before)
                client.block("n1", "Hot machine")
                wait_until(lambda: acked_revision(service, "exec") == 1)
                assert first.result(60) == 1
        assert "Another process has taken over as listener exec" in caplog.text


class TestExec:
    def test_the_command_gets_the_plan_and_can_refuse(
        self, tmp_path: Path, fresh: ServiceProcess, command: Script
    ) -> None:
        (tmp_path / "answer").write_text('{"refused": {"n2": "There is no such node.", "n9": "Not asked for."}}')
        with exec_manager(tmp_path, fresh, command) as manager, BlocklistClient(fresh.url) as client:
            with client.watch() as watch:
                next(watch)
                client.block("n1", "Hot machine")
                client.block("n2", "Disk errors", action=EVACUATE)
            wait_until(lambda: acked_revision(fresh, "exec") == 2)
            assert [step for call in command.calls for step in steps(call)] == [("block", "n1"), ("evacuate", "n2")]
            assert blocked(command.calls[-1]) == ["n1", "n2"]
            wait_until(lambda: refused_reason(fresh, "n2") == "There is no such node.")
            assert refused_reason(fresh, "n1") is None
        assert "There is no such node." in manager.log()

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


class ListedAnew(NodeCache):
    """Lists the nodes whenever it is asked: nothing here watches them."""

    def nodes(self) -> Mapping[str, KubernetesNode]:
        self.read_list()
        return super().nodes()


class FakeKubernetes:
    """The nodes of an API server, which answers to lists of them and to patches."""

    def __init__(self, names: Sequence[str], *_: object) -> None:
        self.bodies = {name: node_body(name) for name in names}
        scripted = ScriptedApi()
        transport = httpx.MockTransport(self._answer)
        scripted.api._clients.http = httpx.Client(transport=transport, base_url="http://api")
        self._api, self._taint = scripted.api, OwnTaint(key=DEFAULT_TAINT, value="kubernetes")

    def start(self) -> KubernetesManager:
        return KubernetesManager(self._api, ListedAnew(self._api, self._taint.key, lambda: None), self._taint)

    def marked(self) -> set[str]:
        return {
            name for name, node in list_nodes(self._api, self._taint.key)[0].items() if is_tainted(node, self._taint)
        }

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"metadata": {"resourceVersion": "7"}, "items": [*self.bodies.values()]})
        name = request.url.path.rpartition("/")[2]
        if (after := patched(self.bodies[name], json.loads(request.content))) is None:
            return httpx.Response(422, json={})
        self.bodies[name] = after
        return httpx.Response(200, json=after)


class FakeYarn:
    def __init__(self, names: Sequence[str], stack: ExitStack, *_: object) -> None:
        yarn = SimulatedYarn(names)
        self._url = stack.enter_context(serving(yarn))
        self._stack = stack
        self.marked = yarn.marked

    def start(self) -> LabelManager:
        stop = Stopping()
        resource_manager = ResourceManager([self._url], Access(), stop, 60)
        self._stack.callback(resource_manager.close)
        return LabelManager(resource_manager, MarkLabels(), stop, AddressNames(stop), min_nodes=0)


class FakeSlurm:
    """What `scontrol` answers, and does."""

    def __init__(
        self, names: Sequence[str], _: ExitStack, __: Path, set_attribute: Callable[[str, object], None]
    ) -> None:
        self._reasons = dict.fromkeys(names, "")
        set_attribute("blocklist.managers.slurm.run", self._run)

    def start(self) -> SlurmManager:
        return SlurmManager(["scontrol"], 60)

    def marked(self) -> set[str]:
        return {name for name, reason in self._reasons.items() if reason}

    def _run(self, command: Sequence[str], **_: object) -> CommandOutput:
        if command[1] == "update":
            given = dict(word.split("=", 1) for word in command[2:])
            for name in given["nodename"].split(","):
                self._reasons[name] = given.get("reason", "")
        lines = (
            f"NodeName={name} Arch=x State=IDLE{'+DRAIN' if why else ''} CPUAlloc=0" + (f" Reason={why}" if why else "")
            for name, why in self._reasons.items()
        )
        return CommandOutput(stdout="".join(f"{line}\n" for line in lines), stderr="", complete=True)


class FakeCommand:
    """A command of the exec manager that knows nodes by the names of its own system."""

    def __init__(
        self, names: Sequence[str], _: ExitStack, folder: Path, set_attribute: Callable[[str, object], None]
    ) -> None:
        self._names, self._marked, self._folder = names, set[str](), folder
        set_attribute("blocklist.managers.exec.run", self._run)

    def start(self) -> ExecManager:
        return ExecManager(["command"], self._folder / "state", 60)

    def marked(self) -> set[str]:
        return self._marked

    def _run(self, *_: object, stdin: bytes, **__: object) -> CommandOutput:
        found = {it["id"]: {it["id"], *it.get("names", ())} & {*self._names} for it in json.loads(stdin)["blocked"]}
        self._marked = {name for names in found.values() for name in names}
        absent = [node_id for node_id, names in found.items() if not names]
        return CommandOutput(stdout=json.dumps({"notHere": absent}), stderr="", complete=True)


class Answering(ListenerSession):
    """A session that keeps which nodes it has reported as not here; without `answers` no node can be looked up."""

    answers = True
    not_here: frozenset[str] = frozenset()

    def known_node(self, node_id: str) -> KnownNodeBody:
        if not self.answers:
            raise UnavailableError("no answer")
        return super().known_node(node_id)

    def report(self, report: Report = EMPTY_REPORT, **more: Any) -> None:
        self.not_here |= report.not_here or frozenset()
        super().report(report, **more)


@contextmanager
def looping(manager: Any, session: Answering) -> Iterator[None]:
    loop: ReconcileLoop[Any] = ReconcileLoop(manager, session, interval=1)
    watch = WatchThread(session.open_watch, loop.wake)
    thread = threading.Thread(target=loop.run, args=[watch])
    thread.start()
    try:
        yield
    finally:
        loop.stop()
        thread.join(60)
        watch.close()
        session.close()


@pytest.mark.parametrize("kind", [FakeKubernetes, FakeYarn, FakeSlurm, FakeCommand], ids=lambda kind: kind.__name__)
def test_a_node_that_is_blocked_by_a_name_that_only_another_source_knows_is_here(
    tmp_path: Path, start_in_process: StartInProcess, kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blocklist.client.names.REFRESH", 0.1)
    monkeypatch.setattr("blocklist.client.names._RETRY", 0.1)
    file = tmp_path / "nodes.csv"
    file.write_text("id,names\nw7,rack1-u7\n")
    service = start_in_process(clock=RunningClock(), nodes_file=str(file))

    def session(start: str) -> Answering:
        registration = Registration(id="manager", role=ListenerRole.RESOURCE_MANAGER, session=start)
        return Answering(service.url, registration, interval=0.2)

    with BlocklistClient(service.url) as client, ExitStack() as stack:
        cluster = kind(["w7", "w8", "w9"], stack, tmp_path, monkeypatch.setattr)

        def reported(condition: Callable[[AppliedBody], bool]) -> None:
            wait_until(lambda: any(map(condition, client.status("rack1-u8").listeners)))

        def is_applied(it: AppliedBody) -> bool:
            return it.applied

        def is_unknown(it: AppliedBody) -> bool:
            return "has not said" in (it.pending_reason or "")

        first = session("1")
        with looping(cluster.start(), first):
            for name in ("rack1-u7", "rack1-u8", "w9"):
                client.block(name, "disk")
            reported(lambda it: it.not_here)
            wait_until(lambda: cluster.marked() == {"w7", "w9"})
            assert first.not_here == {"rack1-u8"}
            file.write_text("id,names\nw7,rack1-u7\nw8,rack1-u8\n")
            service.until(lambda: cluster.marked() == {"w7", "w8", "w9"}, step=0.02)
            reported(is_applied)

        # The next process learns again what else these nodes are called: it frees none of them meanwhile.
        client.unblock("w9")
        again = session("2")
        again.answers = False
        with looping(cluster.start(), again):
            reported(is_unknown)
            assert cluster.marked() == {"w7", "w8", "w9"}
            again.answers = True
            wait_until(lambda: cluster.marked() == {"w7", "w8"})
            reported(is_applied)
        assert again.not_here == set()


class TestOperators:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ([], "the following arguments are required: yarn|slurm|kubernetes|standalone|exec"),
            (["yarn"], "Name the ResourceManager: --resource-manager http://rm:8088"),
            (["yarn", "--resource-manager", "rm:8088"], "'rm:8088' is not a URL such as http://rm:8088"),
            (["yarn", "--kerberos", "--resource-manager", "http://rm"], "--kerberos needs the package httpx-gssapi"),
            (["yarn", "--kerberos", "--user", "ann"], "Give --user or --kerberos, not both"),
            (["yarn", "--label", "a b", "--resource-manager", "http://rm"], "'a b' is not the name of a node label"),
            (["yarn", "--every", "0"], "give a number of seconds above 0"),
            (["yarn", "--url", "example.com", "--print"], "'example.com' is not the URL of a service"),
            (["slurm", "--command", "no-scontrol"], "Command no-scontrol was not found."),
            (["exec", "--state", "/tmp/x"], "Name the command to run."),
            (["exec", "--state", "/no/such/file", "true"], "Folder /no/such does not exist."),
            (["exec", "--state", "/tmp", "true"], "/tmp is a folder; name a file."),
            (["exec", "--state", "/tmp/x", "no-program", "x"], "Command no-program was not found."),
            (["exec", "--id", "a b", "--state", "/tmp/x", "true"], "'a b' is not a node id"),
        ],
    )
    def test_a_usage_error_is_a_sentence(
        self, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert sentence in " ".join(capsys.readouterr().err.split())

    def test_an_unreachable_service_is_a_sentence(self, tmp_path: Path) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        for module, arguments in (("blocklist.managers", ["yarn", "--print"]), ("blocklist.spark", ["conf"])):
            done = run_module(module, *arguments, "--url", url)
            assert done.returncode == 1
            assert f"{url} is out of reach" in done.stderr
            assert "Traceback" not in done.stderr

    def test_a_dry_run_prints_the_plan_and_changes_nothing(
        self, tmp_path: Path, fresh: ServiceProcess, command: Script
    ) -> None:
        state = tmp_path / "done.json"
        options = ("--url", fresh.url, "--state", str(state), "--dry-run", str(command.path))
        assert run_module("blocklist.managers", "exec", *options).stdout == "No changes.\n"
        with BlocklistClient(fresh.url) as client:
            client.block("n1", "Hot machine")
        assert "Node n1 is blocked without end" in run_module("blocklist.managers", "exec", *options).stdout
        assert (state.exists(), command.calls) == (False, [])


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
