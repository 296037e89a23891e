"""Any sequence of requests with time in between leaves the service in the same state as a plain dict."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from tests.integration.bodies import MARK, all_changes, current_list, revision_of
from tests.integration.databases import ON_BOTH, Databases, SqliteFiles
from tests.integration.state_machine import ACTIONS, Block, ServiceMachine
from tests.length import longer

pytestmark = ON_BOTH

node_ids = st.sampled_from(["a", "b", "c", "d:1"])
lengths = st.integers(1, 6) | st.none()
INVALID: list[dict[str, Any]] = [
    {},
    {"action": MARK},
    {"action": MARK, "cause": ""},
    {"action": MARK, "cause": "x", "endTimestamp": 1},
    {"action": MARK, "cause": "x", "allowMerge": None},
    {"action": MARK, "cause": "x", "unknown": 1},
]


@st.composite
def requests(draw: st.DrawFn) -> tuple[Block, bool]:
    """A block with an end relative to now, and whether it may be merged."""
    causes = draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=3))
    new = Block(action=draw(st.sampled_from(ACTIONS)), start=0, end=draw(lengths), cause=",".join(causes))
    return new, draw(st.booleans())


class ListMachine(ServiceMachine):
    """The service and its model; `expected_changes` are the changes that the log must have."""

    def __init__(self, databases: Databases) -> None:
        super().__init__(databases)
        self.model: dict[str, Block] = {}
        self.expected_changes: list[tuple[str, str, dict[str, Any]]] = []

    def _blocked(self, node_id: str) -> Block | None:
        found = self.model.get(node_id)
        return None if found is None or found.ended(self.clock.now) else found

    def _body(self, new: Block, allow: bool) -> tuple[Block, dict[str, Any]]:
        """The block with absolute times, and the body of its request."""
        new = self.absolute(new)
        return new, {**new.body(), "allowMerge": allow}

    def _accept_block(self, node_id: str, new: Block) -> int:
        """Add an accepted block to the model; return the expected status."""
        current = self._blocked(node_id)
        after = new if current is None else current.merged(new)
        if after != current:
            self.expected_changes.append(("blocked" if current is None else "merged", node_id, after.fields()))
        self.model[node_id] = after
        return 201 if current is None else 202

    @rule(node_id=node_ids, request=requests())
    def block(self, node_id: str, request: tuple[Block, bool]) -> None:
        new, body = self._body(*request)
        current = self._blocked(node_id)
        answer = self.client.put(f"/blocklist/nodes/{node_id}", json=body)
        if current is not None and not request[1]:
            assert answer.status_code == 409
            assert answer.json()["blockedNode"] == {"id": node_id, "taskManagers": [], **current.fields()}
            return
        assert answer.status_code == self._accept_block(node_id, new)
        assert answer.json() == {"id": node_id, "taskManagers": [], **self.model[node_id].fields()}
        self._assert_last_revision(revision_of(answer))

    @rule(several=st.dictionaries(node_ids, requests(), min_size=1))
    def block_many(self, several: dict[str, tuple[Block, bool]]) -> None:
        asked = {node_id: self._body(*request) for node_id, request in several.items()}
        conflicts = {i: b.fields() for i, (_, may) in several.items() if not may and (b := self._blocked(i))}
        answer = self.client.put("/blocklist/nodes", json={node_id: body for node_id, (_, body) in asked.items()})
        if conflicts:
            assert answer.status_code == 409
            expected = {i: {"id": i, "taskManagers": [], **fields} for i, fields in conflicts.items()}
            assert answer.json()["blockedNodes"] == expected
            return
        assert answer.status_code == 200
        statuses = {node_id: self._accept_block(node_id, new) for node_id, (new, _) in asked.items()}
        assert {node_id: entry["status"] for node_id, entry in answer.json().items()} == statuses
        self._assert_last_revision(revision_of(answer))

    @rule(node_id=node_ids)
    def unblock(self, node_id: str) -> None:
        current = self._blocked(node_id)
        answer = self.client.delete(f"/blocklist/nodes/{node_id}")
        assert (answer.status_code, answer.content) == (200, b"") or current is None
        assert answer.status_code == 404 or current is not None
        if current is not None:
            self.expected_changes.append(("unblocked", node_id, current.fields()))
            del self.model[node_id]
            self._assert_last_revision(revision_of(answer))

    @rule(node_id=node_ids)
    def get(self, node_id: str) -> None:
        current = self._blocked(node_id)
        answer = self.client.get(f"/blocklist/nodes/{node_id}")
        assert answer.status_code == (404 if current is None else 200)
        if current is not None:
            assert answer.json() == {"id": node_id, "taskManagers": [], **current.fields()}

    @rule(milliseconds=st.integers(1, 8))
    def pass_time(self, milliseconds: int) -> None:
        self.clock.now += milliseconds

    @rule(node_id=node_ids, body=st.sampled_from(INVALID), several=st.booleans())
    def send_invalid_body(self, node_id: str, body: dict[str, Any], *, several: bool) -> None:
        path = "/blocklist/nodes" if several else f"/blocklist/nodes/{node_id}"
        answer = self.client.put(path, content=json.dumps({node_id: body} if several else body))
        assert answer.status_code == 400

    @invariant()
    def the_list_equals_the_model(self) -> None:
        now = self.clock.now
        live = {i: {**b.fields(), "taskManagers": []} for i, b in sorted(self.model.items()) if not b.ended(now)}
        listed = current_list(self.client)[1]
        assert listed == live
        assert list(listed) == list(live)

    @invariant()
    def replaying_the_log_gives_the_list(self) -> None:
        log = all_changes(self.client)
        assert [change["revision"] for change in log] == list(range(1, len(log) + 1))
        asked = [(c["type"], c["node"]["id"], _fields(c["node"])) for c in log if c["type"] != "expired"]
        assert asked == self.expected_changes
        replayed: dict[str, dict[str, Any]] = {}
        for change in log:
            _replay(replayed, change)
        ended = {i for i, fields in replayed.items() if int(fields["endTimestamp"]) <= self.clock.now}
        live = {i: b.fields() for i, b in self.model.items() if not b.ended(self.clock.now)}
        assert {i: fields for i, fields in replayed.items() if i not in ended} == live

    def _assert_last_revision(self, revision: int) -> None:
        """The revision in the response is that of its last change, or the current one if it made none."""
        log = [c for c in all_changes(self.client) if c["revision"] <= revision]
        assert len(log) == revision
        made = sum(change["type"] != "expired" for change in log)
        assert made == len(self.expected_changes)


def _fields(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != "id"}


def _replay(nodes: dict[str, dict[str, Any]], change: dict[str, Any]) -> None:
    """Apply a change to a list, and check that it is valid: no node is blocked twice or unblocked when it is free."""
    node_id, fields = change["node"]["id"], _fields(change["node"])
    assert (node_id in nodes) == (change["type"] != "blocked")
    if change["type"] in {"unblocked", "expired"}:
        assert nodes.pop(node_id) == fields, "the node as it last was"
    else:
        nodes[node_id] = fields
    ended = int(fields["endTimestamp"]) <= int(change["at"])
    assert ended == (change["type"] == "expired")


def test_the_service_behaves_like_a_dict_with_a_log(databases: Databases) -> None:
    class Machine(ListMachine):
        def __init__(self) -> None:
            super().__init__(databases)

    examples = 20 if isinstance(databases, SqliteFiles) else 5
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=longer(examples), stateful_step_count=25, deadline=None)
    )
