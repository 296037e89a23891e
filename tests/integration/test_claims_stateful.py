"""Any sequence of claims of several owners, and of reports about them, leaves the service as a plain model says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from tests.integration.bodies import MARK, all_changes, current_list, revision_of
from tests.integration.databases import ON_BOTH, Databases, SqliteFiles
from tests.integration.listeners import RM, heartbeat, register
from tests.integration.process import wait_until
from tests.integration.state_machine import ACTIONS, Block, ServiceMachine
from tests.length import longer

pytestmark = ON_BOTH

ANONYMOUS = "anonymous"
node_ids = st.sampled_from(["a", "b"])
owner_names = st.sampled_from([ANONYMOUS, "anna", "alertmanager/1"])


requests = st.builds(
    Block,
    action=st.sampled_from(ACTIONS),
    start=st.just(0),
    end=st.integers(1, 8) | st.none(),
    cause=st.sampled_from(["x", "y", "z", "x,y"]),
)
claims = requests | requests.map(lambda request: replace(request, action=MARK, canary=True))


class ClaimsMachine(ServiceMachine):
    """The service, and its model: for each node the claims by owner, in the order in which they were made."""

    def __init__(self, databases: Databases) -> None:
        super().__init__(databases)
        self.model: dict[str, dict[str, Block]] = {"a": {}, "b": {}}
        self.past: dict[int, dict[str, Any]] = {}

    @rule(node_id=node_ids, request=requests, allow=st.booleans())
    def block(self, node_id: str, request: Block, allow: bool) -> None:
        new, claims = self.absolute(request), self.model[node_id]
        revision, was = current_list(self.client)[0], dict(claims)
        answer = self.client.put(f"/blocklist/nodes/{node_id}", json={**new.body(), "allowMerge": allow})
        if claims and not allow:
            assert answer.status_code == 409
            assert answer.json()["blockedNode"] == {"id": node_id, "taskManagers": [], **self._block(node_id)}
            return
        assert answer.status_code == (202 if claims else 201)
        self._merge(node_id, new)
        assert answer.json() == {"id": node_id, "taskManagers": [], **self._block(node_id)}
        changed = was != self.model[node_id]
        assert revision_of(answer) == revision + changed, "a merge that changes no claim makes no revision"

    @rule(several=st.dictionaries(node_ids, st.tuples(requests, st.booleans()), min_size=1))
    def block_many(self, several: dict[str, tuple[Block, bool]]) -> None:
        asked = {node_id: (self.absolute(request), allow) for node_id, (request, allow) in several.items()}
        bodies = {node_id: {**new.body(), "allowMerge": allow} for node_id, (new, allow) in asked.items()}
        answer = self.client.put("/blocklist/nodes", json=bodies)
        if conflicts := {node_id for node_id, (_, allow) in asked.items() if self.model[node_id] and not allow}:
            assert (answer.status_code, answer.json()["blockedNodes"].keys()) == (409, conflicts)
            return
        statuses = {node_id: 202 if self.model[node_id] else 201 for node_id in asked}
        assert {node_id: body["status"] for node_id, body in answer.json().items()} == statuses
        for node_id, (new, _) in asked.items():
            self._merge(node_id, new)

    @rule(node_id=node_ids, owner=owner_names, request=claims)
    def put_claim(self, node_id: str, owner: str, request: Block) -> None:
        new, claims = self.absolute(request), self.model[node_id]
        answer = self.client.put(f"/blocklist/nodes/{node_id}/claims/{owner}", json=new.body())
        assert answer.status_code == (200 if owner in claims else 201)
        self._put(node_id, owner, new)
        assert answer.json()["node"] == {"id": node_id, "taskManagers": [], **self._block(node_id)}

    @rule(owner=owner_names, several=st.dictionaries(node_ids, claims, min_size=1))
    def put_claims(self, owner: str, several: dict[str, Block]) -> None:
        asked = {node_id: self.absolute(request) for node_id, request in several.items()}
        answer = self.client.put(f"/claims/{owner}", json={node_id: new.body() for node_id, new in asked.items()})
        statuses = {node_id: 200 if owner in self.model[node_id] else 201 for node_id in asked}
        assert {node_id: body["status"] for node_id, body in answer.json().items()} == statuses
        for node_id, new in asked.items():
            self._put(node_id, owner, new)

    @rule(node_id=node_ids, owner=owner_names)
    def remove_claim(self, node_id: str, owner: str) -> None:
        claims = self.model[node_id]
        answer = self.client.delete(f"/blocklist/nodes/{node_id}/claims/{owner}")
        assert answer.status_code == (200 if owner in claims else 404)
        if owner in claims:
            del claims[owner]
            assert answer.json()["blocked"] is bool(claims)

    @rule(owner=owner_names, several=st.sets(node_ids, min_size=1))
    def remove_claims(self, owner: str, several: set[str]) -> None:
        answer = self.client.delete(f"/claims/{owner}", params={"node": sorted(several)})
        every = all(owner in self.model[node_id] for node_id in several)
        assert answer.status_code == (200 if every else 404)
        for node_id in several if every else ():
            del self.model[node_id][owner]

    @rule(node_id=node_ids)
    def unblock(self, node_id: str) -> None:
        answer = self.client.delete(f"/blocklist/nodes/{node_id}")
        assert answer.status_code == (200 if self.model[node_id] else 404)
        self.model[node_id].clear()

    @rule(milliseconds=st.integers(1, 8))
    def pass_time(self, milliseconds: int) -> None:
        self.past[self.clock.now] = self._list()
        self.clock.now += milliseconds
        for claims in self.model.values():
            for owner in [owner for owner, block in claims.items() if block.ended(self.clock.now)]:
                del claims[owner]
        wait_until(lambda: current_list(self.client)[1] == self._list())

    @invariant()
    def the_list_and_the_claims_equal_the_model(self) -> None:
        assert current_list(self.client)[1] == self._list()
        page = self.client.get("/claims").json()
        found = [(it.pop("node"), it.pop("owner"), it) for it in page["claims"]]
        assert found == [
            (node_id, owner, {**block.fields(), "createdBy": None})
            for node_id, claims in sorted(self.model.items())
            for owner, block in claims.items()
        ]

    @invariant()
    def replaying_the_log_gives_the_list_and_its_past(self) -> None:
        replayed: dict[str, Any] = {}
        for change in all_changes(self.client):
            _replay(replayed, change)
        ended = {node_id for node_id, fields in replayed.items() if int(fields["endTimestamp"]) <= self.clock.now}
        listed = {node_id: fields for node_id, fields in replayed.items() if node_id not in ended}
        assert {node_id: {**fields, "taskManagers": []} for node_id, fields in listed.items()} == self._list()
        for at, then in list(self.past.items())[-2:]:
            assert self.client.get(f"/blocklist?at={at}").json() == then

    def _merge(self, node_id: str, new: Block) -> None:
        claims = self.model[node_id]
        claims[ANONYMOUS] = claims[ANONYMOUS].merged(new) if ANONYMOUS in claims else new

    def _put(self, node_id: str, owner: str, new: Block) -> None:
        claims = self.model[node_id]
        claims[owner] = replace(new, start=claims[owner].start) if owner in claims else new

    def _block(self, node_id: str) -> dict[str, Any]:
        return reduce(Block.merged, self.model[node_id].values()).fields()

    def _list(self) -> dict[str, Any]:
        return {
            node_id: {**self._block(node_id), "taskManagers": []}
            for node_id, claims in sorted(self.model.items())
            if claims
        }


def _replay(nodes: dict[str, Any], change: dict[str, Any]) -> None:
    """Apply a change to a list, and check that its claims make the block."""
    node = dict(change["node"])
    node_id = node.pop("id")
    assert (node_id in nodes) == (change["type"] != "blocked")
    if change["type"] in {"unblocked", "expired"}:
        before = {name: value for name, value in nodes.pop(node_id).items() if name != "canary"}
        assert before == node, "the node as it last was"
        assert "claims" not in change
        return
    nodes[node_id] = node
    if "claims" in change:
        made = [
            Block(
                it["action"], int(it["startTimestamp"]), int(it["endTimestamp"]), it["cause"], it.get("canary", False)
            )
            for it in change["claims"]
        ]
        assert reduce(Block.merged, made).fields() == node


def test_claims_behave_like_a_dict_of_dicts_with_a_log(databases: Databases) -> None:
    class Machine(ClaimsMachine):
        def __init__(self) -> None:
            super().__init__(databases)

    examples = 5 if isinstance(databases, SqliteFiles) else 2
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=longer(examples), stateful_step_count=20, deadline=None)
    )


APPLIED, REFUSED, PENDING, NOT_HERE = "applied", "refused", "pending", "not here"
listener_ids = st.sampled_from(["k8s", "yarn", "job"])
reports = st.dictionaries(node_ids, st.sampled_from([APPLIED, REFUSED, PENDING, NOT_HERE]))


@dataclass
class Reporting:
    """A listener: the revision that it has acknowledged, what it last reported of each node, and whether it is known to
    live.
    """

    acked: int | None = None
    report: dict[str, str] = field(default_factory=dict)
    confirmed: bool = True

    def state(self, node_id: str, revision: int) -> str:
        if not self.confirmed or self.acked is None or self.acked < revision:
            return PENDING
        return self.report.get(node_id, APPLIED)


class ReportsMachine(ServiceMachine):
    """Claims on two nodes, two managers and a job that report about them; on PostgreSQL at two replicas."""

    def __init__(self, databases: Databases) -> None:
        self.replicated = not isinstance(databases, SqliteFiles)
        self.here: Any
        self.other: Any
        super().__init__(databases)
        self.listeners = {"k8s": Reporting(), "yarn": Reporting(), "job": Reporting(acked=0)}
        self.last: dict[str, int] = {}
        self.seen: dict[str, Any] = {}

    def _client(self) -> Any:
        self.here = super()._client()
        self.other = super()._client() if self.replicated else self.here
        return self.here

    @initialize()
    def register(self) -> None:
        for name in ("k8s", "yarn"):
            register(self.here, name, role=RM, cluster=name, leaseSeconds=3600)
        register(self.here, "job", leaseSeconds=3600)

    @rule(node_id=node_ids, owner=owner_names, request=claims, there=st.booleans())
    def put_claim(self, node_id: str, owner: str, request: Block, there: bool) -> None:
        client = self.other if there else self.here
        body = replace(self.absolute(request), end=None).body()
        assert client.put(f"/blocklist/nodes/{node_id}/claims/{owner}", json=body).status_code in {200, 201}
        self._changed()

    @rule(node_id=node_ids, owner=owner_names)
    def remove_claim(self, node_id: str, owner: str) -> None:
        self.here.delete(f"/blocklist/nodes/{node_id}/claims/{owner}")
        self._changed()

    @rule(name=listener_ids, report=reports, acknowledges=st.booleans(), there=st.booleans(), upper=st.booleans())
    def report(self, name: str, report: dict[str, str], acknowledges: bool, there: bool, upper: bool) -> None:
        # A replica takes a report from another one only if it is later than what it knows.
        self.clock.now += 1
        if name == "job":
            report = {node_id: state for node_id, state in report.items() if state != NOT_HERE}
        nodes = {
            state: [it.upper() if upper else it for it in report if report[it] == state] for state in report.values()
        }
        revision = max(self.last.values(), default=0)
        fields: dict[str, Any] = {
            **({"ackedRevision": revision} if acknowledges else {}),
            "refused": dict.fromkeys(nodes.get(REFUSED, ()), "No."),
            "pending": dict.fromkeys(nodes.get(PENDING, ()), "Not yet."),
            **({} if name == "job" else {"notHere": nodes.get(NOT_HERE, [])}),
        }
        heartbeat(self.other if there else self.here, name, **fields)
        listener = self.listeners[name]
        listener.report, listener.confirmed = report, True
        if acknowledges:
            listener.acked = max(revision, listener.acked or 0)

    @rule()
    def restart(self) -> None:
        super().restart()
        for listener in self.listeners.values():
            listener.confirmed = False
            if not self.replicated:
                listener.report = {}

    @invariant()
    def each_replica_counts_what_listeners_report(self) -> None:
        expected = {node_id: self._expected(node_id, revision) for node_id, revision in self.last.items()}
        for client in (self.here, self.other):
            found = {node_id: self._found(client, node_id) for node_id in self.last}
            for node_id, each in found.items():
                assert each in (expected[node_id], self.seen.get(node_id)), "nothing in between"
            wait_until(lambda client=client: {it: self._found(client, it) for it in self.last} == expected)  # type: ignore[misc]
        self.seen = expected

    @rule(node_id=node_ids)
    def wait(self, node_id: str) -> None:
        """A claim that changes nothing tells how far the last change is."""
        listed = self.here.get(f"/blocklist/nodes/{node_id}/claims").json().get("claims", ())
        for claim in listed[:1]:
            path = f"/blocklist/nodes/{node_id}/claims/{claim['owner']}"
            body = {name: claim[name] for name in ("action", "cause", "canary") if name in claim}
            answer = self.here.put(path, json=body, headers={"Prefer": "wait=0"})
            self._changed()
            # A request that changes nothing waits for the present revision.
            states = self._states(node_id, int(answer.headers["blocklist-revision"]))
            of = [name for name, state in states.items() if state != NOT_HERE]
            applied = [name for name in of if states[name] == APPLIED]
            assert answer.headers["blocklist-applied"] == f"{len(applied)}/{len(of)}"
            not_here = sorted(set(states) - set(of))
            assert answer.headers.get("blocklist-not-here", "") == ", ".join(not_here)

    def _changed(self) -> None:
        self.last = {change["node"]["id"]: change["revision"] for change in all_changes(self.here)}

    def _states(self, node_id: str, revision: int) -> dict[str, str]:
        return {name: listener.state(node_id, revision) for name, listener in self.listeners.items()}

    def _expected(self, node_id: str, revision: int) -> dict[str, Any]:
        states = self._states(node_id, revision)
        counted = [state for state in states.values() if state != NOT_HERE]
        nowhere = all(states[name] == NOT_HERE for name in ("k8s", "yarn"))
        known = "not-here" if nowhere and states["job"] == APPLIED else "unknown"
        state = REFUSED if REFUSED in counted else PENDING if PENDING in counted else known
        return {"states": states, "applied": counted.count(APPLIED), "of": len(counted), "state": state}

    def _found(self, client: Any, node_id: str) -> dict[str, Any]:
        body = client.get(f"/blocklist/nodes/{node_id}/status").json()
        states = {it["id"]: _state_of(it) for it in body["listeners"]}
        return {"states": states, "applied": body["applied"], "of": body["of"], "state": body["state"]}


def _state_of(listener: dict[str, Any]) -> str:
    if listener["notHere"]:
        return NOT_HERE
    return APPLIED if listener["applied"] else REFUSED if listener["refused"] is not None else PENDING


def test_every_replica_counts_a_block_only_where_the_node_is(databases: Databases) -> None:
    class Machine(ReportsMachine):
        def __init__(self) -> None:
            super().__init__(databases)

    examples = 5 if isinstance(databases, SqliteFiles) else 2
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=longer(examples), stateful_step_count=20, deadline=None)
    )
