"""Requests of a listener without a callback, and what the service shows of it."""

from __future__ import annotations

from typing import Any, Final

import httpx

from tests.integration.process import Until, wait_until
from tests.integration.receiver import Receiver

JM: Final = "JOB_MASTER"
RM: Final = "RESOURCE_MANAGER"
FIELDS: Final = frozenset(
    {
        "id",
        "role",
        "sessionId",
        "callbackUrl",
        "cluster",
        "product",
        "version",
        "platform",
        "mode",
        "wantedMode",
        "state",
        "ackedRevision",
        "lagRevisions",
        "lagMs",
        "lastError",
        "minNodes",
        "usableNodes",
        "leaseEnd",
        "revision",
    }
)


def registration_body(session: str = "s1", **fields: object) -> dict[str, Any]:
    """The body that registers a JobMaster without a callback."""
    return {"role": JM, "sessionId": session, **fields}


def register(client: httpx.Client, listener: str, session: str = "s1", **fields: object) -> dict[str, Any]:
    answer = client.put(f"/listeners/{listener}", json=registration_body(session, **fields))
    assert answer.status_code in {200, 201}, answer.text
    body: dict[str, Any] = answer.json()
    return body


def post_heartbeat(client: httpx.Client, listener: str, session: str = "s1", **fields: object) -> httpx.Response:
    """Send a heartbeat; the response."""
    return client.post(f"/listeners/{listener}/heartbeat", json={"sessionId": session, **fields})


def heartbeat(client: httpx.Client, listener: str, session: str = "s1", **fields: object) -> dict[str, Any]:
    """Send a heartbeat that must succeed; the body of the response."""
    answer = post_heartbeat(client, listener, session, **fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def get_listener(client: httpx.Client, listener: str) -> dict[str, Any]:
    """A listener as the service shows it."""
    answer = client.get(f"/listeners/{listener}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def without_lag(client: httpx.Client, listener: str) -> dict[str, Any]:
    """The same without the fields that change with time."""
    return {name: value for name, value in get_listener(client, listener).items() if name not in {"lagMs", "lastError"}}


def wait_until_lapsed(client: httpx.Client, listener: str, *, until: Until = wait_until) -> None:
    """Wait for its lease to end."""
    until(lambda: get_listener(client, listener)["state"] == "lapsed")


def put(client: httpx.Client, node_id: str, **fields: object) -> int:
    """Block a node, or merge; the revision."""
    body = {"action": "MARK_BLOCKED", "cause": "disk", "allowMerge": True, **fields}
    answer = client.put(f"/blocklist/nodes/{node_id}", json=body)
    assert answer.status_code in {201, 202}, answer.text
    return int(answer.headers["blocklist-revision"])


def unblock(client: httpx.Client, node_id: str) -> int:
    """Unblock a node; the revision."""
    answer = client.delete(f"/blocklist/nodes/{node_id}")
    assert answer.status_code == 200, answer.text
    return int(answer.headers["blocklist-revision"])


def current_nodes(client: httpx.Client) -> dict[str, Any]:
    """The list as listeners store it: node id to node, without TaskManagers."""
    listed = client.get("/blocklist").json()
    return {
        node_id: {"id": node_id, **{name: value for name, value in node.items() if name != "taskManagers"}}
        for node_id, node in listed.items()
    }


def wait_until_pushed(
    client: httpx.Client, receiver: Receiver, revision: int, listener: str = "jm", until: Until = wait_until
) -> None:
    """Wait until a receiver has applied a revision and the service has its acknowledgement."""
    receiver.wait(lambda it: it.has(revision), until)
    until(lambda: get_listener(client, listener)["ackedRevision"] >= revision)
