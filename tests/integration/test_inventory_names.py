"""Names and addresses that only the inventory knows mean their machine everywhere; ambiguous ones mean none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.listeners import drift
from tests.alertmanager.posts import alert, post
from tests.integration.bodies import block, current_list
from tests.integration.command import Command
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService, RunningClock
from tests.integration.listeners import RM, heartbeat, register
from tests.integration.problems import problem_of
from tests.integration.test_drift import EVACUATE, is_drift
from tests.integration.test_evidence import EXCLUDED

FILE: Final = """id,names,addresses,labels
n7,worker-7.rack2,10.0.0.7,rack=r2
n8,worker-8.rack2 gateway.rack2,10.0.0.8 10.0.0.99,rack=r2
n9,worker-9.rack2 gateway.rack2,10.0.0.9 10.0.0.99,rack=r2
"""
PAIRS: Final = [("n7", "10.0.0.7"), ("10.0.0.7", "worker-7.rack2"), ("worker-7.rack2", "N7"), ("n7", "::ffff:10.0.0.7")]
AMBIGUOUS: Final = ["10.0.0.99", "gateway.rack2"]
ORIGIN: Final = {"Sec-Fetch-Site": "same-origin"}
ALERTS: Final = "/integrations/alertmanager"
Body = dict[str, Any]


@pytest.fixture
def service(start_in_process: StartInProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcessService:
    """A service whose file of nodes is all that knows other names."""
    file = tmp_path / "nodes.csv"
    file.write_text(FILE)
    settings = {"max_blocked_per": "rack=1", "evidence_max_share": "1"}
    monkeypatch.setattr(drift, "EVACUATION_MS", 0)
    return start_in_process(clock=RunningClock(), nodes_file=str(file), **settings)


@pytest.fixture
def client(service: InProcessService) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def command(binaries: Path, service: InProcessService) -> Command:
    return Command(binaries, service.url)


def put(client: httpx.Client, name: str, **fields: object) -> httpx.Response:
    return client.put(f"/blocklist/nodes/{name}", json=block(**fields))


def blocked_ids(client: httpx.Client) -> list[str]:
    return sorted(current_list(client)[1])


def form(name: str) -> Body:
    return {"nodes": name, "action": "mark", "cause": "disk", "ends": "for", "for": "2h", "until": ""}


class Case:
    """A running service, the name under which the machine is or will be blocked, and another name of it."""

    def __init__(
        self, service: InProcessService, client: httpx.Client, command: Command, pair: tuple[str, str]
    ) -> None:
        self.service, self.client, self.command = service, client, command
        self.blocked, self.name = pair

    def get(self, path: str) -> Body:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        body: Body = answer.json()
        return body

    # Each of these begins with a block under `blocked`.

    def read(self) -> None:
        assert self.get(f"/blocklist/nodes/{self.name}")["id"] == self.blocked

    def read_status(self) -> None:
        register(self.client, "job")
        heartbeat(self.client, "job", taskManagers={"tm": self.name})
        status = self.get(f"/blocklist/nodes/{self.name}/status")
        task_managers = [each["id"] for each in status["listeners"][0]["taskManagers"]]
        assert (status["id"], status["blocked"], task_managers) == (self.blocked, True, ["tm"])
        assert self.get(f"/blocklist/nodes/{self.blocked}")["taskManagers"] == ["tm"]

    def read_node(self) -> None:
        node = self.get(f"/nodes/{self.name}")
        assert (node["id"], node["blocked"], [each["id"] for each in node["blocks"]]) == ("n7", True, [self.blocked])

    def read_claims(self) -> None:
        claims = self.get(f"/blocklist/nodes/{self.name}/claims")["claims"]
        assert [claim["owner"] for claim in claims] == ["anonymous"]

    def selector(self) -> None:
        assert list(self.get("/blocklist?selector=rack%3Dr2")) == [self.blocked]

    def conflict(self) -> None:
        assert problem_of(put(self.client, self.name), 409)["blockedNode"]["id"] == self.blocked

    def merge(self) -> None:
        merged = put(self.client, self.name, cause="heat", allowMerge=True)
        assert (merged.status_code, merged.json()["id"]) == (202, self.blocked)
        assert blocked_ids(self.client) == [self.blocked]

    def several_at_once(self) -> None:
        answer = self.client.put("/blocklist/nodes", json={self.name: block(cause="heat", allowMerge=True)})
        assert answer.status_code == 200
        assert blocked_ids(self.client) == [self.blocked]

    def claim(self) -> None:
        path = f"/blocklist/nodes/{self.name}/claims/anna"
        assert self.client.put(path, json={"action": "MARK_BLOCKED", "cause": "heat"}).status_code == 201
        assert blocked_ids(self.client) == [self.blocked]
        assert self.client.delete(path).status_code == 200

    def dry_run(self) -> None:
        answer = self.client.put(f"/blocklist/nodes/{self.name}?dryRun=true", json=block(allowMerge=True))
        [node] = answer.json()["nodes"]
        assert (node["status"], node["node"]["id"]) == (202, self.blocked)

    def unblock(self) -> None:
        assert self.client.delete(f"/blocklist/nodes/{self.name}").status_code == 200
        assert blocked_ids(self.client) == []

    def alert(self) -> None:
        firing = alert(node=self.name)
        assert self.client.post(ALERTS, json=post(firing)).status_code == 200
        assert blocked_ids(self.client) == [self.blocked]
        resolved = alert(node=self.name, resolved=True)
        assert self.client.post(ALERTS, json=post(resolved)).status_code == 200
        assert len(self.get(f"/blocklist/nodes/{self.blocked}/claims")["claims"]) == 1

    def dismissal(self) -> None:
        assert self.client.post(ALERTS, json=post(alert(node=self.blocked))).status_code == 200
        assert self.client.delete(f"/blocklist/nodes/{self.blocked}").status_code == 200
        assert self.get(f"/blocklist/nodes/{self.name}/claims")["dismissed"] != []

    def domain(self) -> None:
        detail = problem_of(put(self.client, "n8"), 409)["detail"]
        assert "2 of the 3 nodes with rack=r2" in detail
        assert "Blocked there: n7" in detail

    def drift(self) -> None:
        register(self.client, "slurm", role=RM)
        heartbeat(self.client, "slurm", unschedulable={self.name: "DRAIN", "n1": "DOWN"})
        self.service.until(lambda: is_drift(self.client, ("n1", "unschedulable", "slurm")))

    def drift_of_tasks(self) -> None:
        put(self.client, self.blocked, action=EVACUATE, allowMerge=True)
        register(self.client, "job")
        heartbeat(self.client, "job", taskManagers={"tm": self.name}, runningTasks={"tm": 1})
        self.service.until(lambda: is_drift(self.client, (self.blocked, "tasks-running", "job")))

    def evidence(self) -> None:
        for job in ("x", "y"):
            register(self.client, job)
            where = {f"{job}:{number}": f"host-{number}" for number in range(9)}
            heartbeat(self.client, job, taskManagers=where, evidence={self.name: EXCLUDED})
        self.service.until(lambda: len(self.get(f"/blocklist/nodes/{self.blocked}/claims")["claims"]) == 2)
        assert blocked_ids(self.client) == [self.blocked]

    def page(self) -> None:
        assert self.client.get(f"/page/nodes/{self.name}").status_code == 200
        preview = self.client.post("/page/block", data=form(self.name), headers=ORIGIN).text
        assert "not a known node" not in preview
        assert "The node is already blocked" in preview

    def page_unblock(self) -> None:
        assert self.blocked in self.client.get(f"/page/nodes/{self.name}/unblock").text

    def command_reads(self) -> None:
        now = datetime.now(UTC).isoformat()
        assert self.command.stdout_of("is-blocked", self.name).startswith(f"{self.blocked} blocked ")
        assert self.blocked in self.command.stdout_of("get", self.name)
        assert f"{self.blocked} blocked" in self.command.run("status", self.name).stderr
        assert self.blocked in self.command.stdout_of("history", self.name, "--at", now)

    def command_changes(self) -> None:
        again = self.command.run("block", self.name, "-r", "disk", "--forever", "--strict")
        assert (again.returncode, again.stdout) == (0, f"{self.blocked} already blocked forever\n")
        tried = self.command.stdout_of("unblock", self.name, "--dry-run")
        assert tried.splitlines()[0] == f"{self.blocked} would be unblocked"
        assert self.command.run("unblock", self.name).returncode == 0
        assert self.command.run("is-blocked", self.blocked).returncode == 1

    # These begin with a free machine.

    def known(self) -> None:
        answer = self.client.put(f"/blocklist/nodes/{self.name}?dryRun=true", json=block())
        [node] = answer.json()["nodes"]
        assert (node["known"], node["didYouMean"], node["ambiguous"]) == (True, None, [])
        assert self.client.put(f"/blocklist/nodes/{self.name}?strict=true", json=block()).status_code == 201

    def minimum(self) -> None:
        register(self.client, "job", minNodes=2)
        heartbeat(self.client, "job", nodes=[self.blocked, "n1"], taskManagers={"a": self.blocked, "b": "n1"})
        assert "needs 2" in problem_of(put(self.client, self.name), 409)["detail"]

    def refusal(self) -> None:
        register(self.client, "job")
        revision = int(put(self.client, self.blocked).headers["blocklist-revision"])
        heartbeat(self.client, "job", ackedRevision=revision, refused={self.name: "The last host."})
        [progress] = self.get(f"/blocklist/nodes/{self.blocked}/status")["listeners"]
        assert (progress["applied"], progress["refused"]) == (False, "The last host.")


BLOCKED: Final = [
    Case.read,
    Case.read_status,
    Case.read_node,
    Case.read_claims,
    Case.selector,
    Case.conflict,
    Case.merge,
    Case.several_at_once,
    Case.claim,
    Case.dry_run,
    Case.unblock,
    Case.alert,
    Case.dismissal,
    Case.domain,
    Case.drift,
    Case.drift_of_tasks,
    Case.evidence,
    Case.page,
    Case.page_unblock,
    Case.command_reads,
    Case.command_changes,
]
FREE: Final = [Case.known, Case.minimum, Case.refusal]
"""All places that match names: what each does with another name of a machine that is blocked, or free."""


@pytest.mark.parametrize("check", [*BLOCKED, *FREE], ids=lambda check: check.__name__)
def test_a_name_that_only_the_inventory_knows_means_its_machine(
    service: InProcessService, client: httpx.Client, command: Command, check: Callable[[Case], None]
) -> None:
    for pair in PAIRS:
        if check in BLOCKED:
            assert put(client, pair[0]).status_code == 201
        check(Case(service, client, command, pair))
        for listener in client.get("/listeners").json()["listeners"]:
            client.delete(f"/listeners/{listener['id']}")
        for node_id in blocked_ids(client):
            client.delete(f"/blocklist/nodes/{node_id}")


MEANING: Final = "means 2 nodes: n8, n9"


@pytest.mark.parametrize("name", AMBIGUOUS)
class TestAmbiguous:
    """A name or an address that two nodes claim means neither of them, and whoever gives it is told."""

    def test_it_finds_no_block_of_either(self, client: httpx.Client, command: Command, name: str) -> None:
        put(client, "n8")
        for answer in (
            client.get(f"/blocklist/nodes/{name}"),
            client.get(f"/blocklist/nodes/{name}/claims"),
            client.delete(f"/blocklist/nodes/{name}"),
            client.delete(f"/blocklist/nodes/{name}?dryRun=true"),
        ):
            assert MEANING in problem_of(answer, 404)["detail"]
        assert MEANING in problem_of(client.get(f"/nodes/{name}"), 409)["detail"]
        asked = command.run("is-blocked", name)
        assert asked.returncode == 1
        assert MEANING in asked.stdout + asked.stderr
        assert MEANING in command.run("unblock", name).stderr
        assert blocked_ids(client) == ["n8"]

    def test_a_block_of_it_is_announced_as_one_of_no_machine(
        self, client: httpx.Client, command: Command, name: str
    ) -> None:
        [node] = client.put(f"/blocklist/nodes/{name}?dryRun=true", json=block()).json()["nodes"]
        assert (node["known"], node["didYouMean"], node["ambiguous"]) == (False, None, ["n8", "n9"])
        assert MEANING in client.post("/page/block", data=form(name), headers=ORIGIN).text
        assert MEANING in problem_of(client.put(f"/blocklist/nodes/{name}?strict=true", json=block()), 409)["detail"]
        dry_run = command.run("block", name, "-r", "disk", "--forever", "--dry-run")
        assert (dry_run.returncode, MEANING in dry_run.stderr) == (0, True)
        refused = command.run("block", name, "-r", "disk", "--forever", "--strict")
        assert (refused.returncode, MEANING in refused.stderr) == (1, True)
        assert blocked_ids(client) == []
        done = command.run("block", name, "-r", "disk", "--forever")
        assert (done.returncode, MEANING in done.stderr) == (0, True)
        made = client.put("/blocklist/nodes", json={name: block(allowMerge=True)}).json()[name]
        assert "ambiguous" not in made  # It is blocked already, and only merged.

    def test_a_block_of_it_counts_in_no_domain_and_selects_nothing(self, client: httpx.Client, name: str) -> None:
        assert put(client, name).status_code == 201
        assert client.get("/blocklist?selector=rack%3Dr2").json() == {}
        assert put(client, "n8").status_code == 201
        assert blocked_ids(client) == sorted([name, "n8"])


class TestShortNameOfSeveral:
    """A short name blocks every node that it means: `strict` refuses it, and each other way names them all."""

    MEANT = "n1 means 2 nodes, which are all blocked by it: n1.ams, n1.fra."

    @pytest.fixture
    def service(self, start_in_process: StartInProcess, tmp_path: Path) -> InProcessService:
        file = tmp_path / "nodes.csv"
        file.write_text("id,names,addresses,labels\nn1.ams,,10.0.0.1,\nn1.fra,,10.0.0.2,\nn2.ams,,10.0.0.3,\n")
        return start_in_process(clock=RunningClock(), nodes_file=str(file), max_blocked="1")

    def test_strict_refuses_it(self, client: httpx.Client) -> None:
        for path, body in (
            ("/blocklist/nodes/n1", block()),
            ("/blocklist/nodes/N1", block()),
            ("/blocklist/nodes", {"n1": block()}),
            ("/claims/ann", {"n1": block()}),
        ):
            refused = problem_of(client.put(f"{path}?strict=true", json=body), 409)
            assert "means 2 nodes: n1.ams, n1.fra. Give the id of one of them." in refused["detail"]
        assert put(client, "n1.fra").status_code == 201
        assert "means 2 nodes" in problem_of(client.put("/blocklist/nodes/n1?strict=true", json=block()), 409)["detail"]

    def test_every_answer_names_them(self, client: httpx.Client, command: Command) -> None:
        force = "?force=test"
        [tried] = client.put("/blocklist/nodes/n1?dryRun=true", json=block()).json()["nodes"]
        assert (tried["known"], tried["means"]) == (True, ["n1.ams", "n1.fra"])
        assert self.MEANT in client.post("/page/block", data=form("n1"), headers=ORIGIN).text
        assert self.MEANT in command.run("block", "n1", "-r", "disk", "--forever", "--dry-run").stderr
        made = client.put(f"/blocklist/nodes/n1{force}", json=block())
        assert made.headers["warning"] == f'299 - "{self.MEANT}"'
        assert (
            client.get("/blocklist/nodes/n1.ams").status_code
            == 200
            == client.get("/blocklist/nodes/n1.fra").status_code
        )
        several = client.put(f"/blocklist/nodes{force}", json={"n1": block(allowMerge=True)}).json()
        assert several["n1"]["means"] == ["n1.ams", "n1.fra"]
        assert "means" not in client.put(f"/blocklist/nodes{force}", json={"n2": block()}).json()["n2"]
        client.delete("/blocklist/nodes/n1")
        done = command.run("block", "n1", "-r", "disk", "--forever", "--force-reason", "test")
        assert (done.returncode, self.MEANT in done.stderr) == (0, True)

    def test_it_counts_as_many_machines(self, client: httpx.Client) -> None:
        refused = problem_of(put(client, "n1"), 409)
        assert "This would block 2 nodes; at most 1 may be blocked at once" in refused["detail"]
        assert put(client, "n1.fra").status_code == 201
