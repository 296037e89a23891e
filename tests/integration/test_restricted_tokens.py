"""A token that may change only the claims of some owners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blocklist.model.claims import Role
from tests.alertmanager.posts import alert, post
from tests.integration.bodies import block
from tests.integration.databases import Databases
from tests.integration.listeners import register, registration_body
from tests.integration.problems import problem_of
from tests.integration.secured import SecuredInProcess, secured_in_process
from tests.integration.test_auth import ROUTES
from tests.integration.test_claims import claim

ALERTS = "/integrations/alertmanager"


def restricted(secured: SecuredInProcess, *owners: str, name: str = "prometheus") -> httpx.Client:
    return secured.client(secured.make_token(Role.OPERATOR, name, owners=owners)["token"])


@pytest.fixture
def client(secured: SecuredInProcess) -> Iterator[httpx.Client]:
    with restricted(secured, "alertmanager/*", "maintenance") as client:
        yield client


def test_it_changes_claims_of_its_owners(client: httpx.Client, node: str, node_id: str) -> None:
    assert client.put(f"{node}/claims/alertmanager/1", json=claim()).status_code == 201
    assert client.put("/claims/maintenance", json={node_id: claim()}).status_code == 200
    assert client.post(ALERTS, json=post(alert(node=node_id))).json()["alerts"] == {"merged": 1}
    assert client.delete(f"{node}/claims/alertmanager/1").status_code == 200
    assert client.delete(f"/claims/maintenance?node={node_id}").status_code == 200
    assert client.post(ALERTS, json=post(alert(node=node_id, resolved=True))).json()["alerts"] == {"freed": 1}


CHANGES = sorted(
    (method, route.path)
    for route in ROUTES
    for method in {"PUT", "POST", "PATCH", "DELETE"} & (route.methods or set())
    if route.path not in {"/login", "/logout", ALERTS}
)
BODIES = {
    "/listeners/{id}": registration_body(role="RESOURCE_MANAGER", sessionId="s2"),
    "/listeners/{id}/heartbeat": {"sessionId": "s1", "nodes": {"n9": {"names": ["n1"]}}},
    "/listeners/{id}/secret": {"sessionId": "s1"},
    "/blocklist/nodes": {"n1": block(allowMerge=True)},
    "/claims/{owner:owner}": {"n1": claim(cause="x")},
}


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_every_other_route_that_changes_something_is_refused(
    secured: SecuredInProcess, client: httpx.Client, method: str, path: str
) -> None:
    with secured.client(secured.tokens[Role.OPERATOR]) as operator:
        operator.put("/blocklist/nodes/n1/claims/anna", json=claim()).raise_for_status()
        register(operator, "app-1", minNodes=1)
        before = [operator.get(read).json() for read in ("/blocklist/nodes/n1/claims", "/listeners/app-1", "/nodes")]
        named = path.replace("{node_id}", "n1").replace("{owner:owner}", "anna").replace("{id}", "app-1")
        body = BODIES.get(path, claim(cause="x") if "claims" in path else block(allowMerge=True))
        statuses = set()
        for params in ({}, {"dryRun": "true"}, {"selector": "name=n1"}, {"node": "n1"}, {"owner": "me"}):
            answer = client.request(method, named, json=None if method == "DELETE" else body, params=params)
            statuses.add(answer.status_code)
        assert 403 in statuses
        assert statuses <= {400, 403}
        reads = ("/blocklist/nodes/n1/claims", "/listeners/app-1", "/nodes")
        assert [without_times(operator.get(read).json()) for read in reads] == [without_times(it) for it in before]


def without_times(value: Any) -> Any:
    """The answer without what changes by itself."""
    if isinstance(value, dict):
        return {name: without_times(it) for name, it in value.items() if name not in {"lagMs", "leaseEnd", "lastSeen"}}
    return [without_times(it) for it in value] if isinstance(value, list) else value


def test_an_application_asks_for_blocks_with_a_claim_of_its_own(secured: SecuredInProcess, node: str) -> None:
    """With two tokens: what registers needs another one than what claims."""
    with restricted(secured, "listener/x", name="x") as x, restricted(secured, "listener/y", name="y") as y:
        for client, name in ((x, "x"), (y, "y")):
            assert client.put(f"{node}/claims/listener/{name}", json=claim(cause=name)).status_code == 201
        assert y.delete(f"{node}/claims/listener/x").status_code == 403
        assert x.delete(f"{node}/claims/listener/x").json()["blocked"] is True
        assert [it["owner"] for it in y.get(f"{node}/claims").json()["claims"]] == ["listener/y"]


def test_with_its_own_name_among_its_owners_it_blocks_without_an_owner(secured: SecuredInProcess, node: str) -> None:
    with restricted(secured, "maintenance", name="maintenance") as client:
        assert client.put(node, json=block()).status_code == 201
        problem_of(client.delete(node), 403)
        assert client.delete(f"{node}/claims/maintenance").status_code == 200


def test_alerts_of_a_token_for_other_owners_are_refused(secured: SecuredInProcess, node: str, node_id: str) -> None:
    with restricted(secured, "maintenance") as client:
        problem_of(client.post(ALERTS, json=post(alert(node=node_id))), 403)
        assert client.get(node).status_code == 404


def test_a_session_of_the_page_has_the_restriction_of_its_token(secured: SecuredInProcess, node: str) -> None:
    token = secured.make_token(Role.OPERATOR, "x", owners=["maintenance"])["token"]
    with secured.client() as visitor:
        visitor.post("/login", data={"token": token})
        for page in ("block", f"nodes/{node.rpartition('/')[2]}/extend", "selection/extend"):
            refused = visitor.get(f"/page/{page}")
            assert refused.status_code == 403
            assert "The page changes blocks for all owners" in refused.text
        assert visitor.get("/blocklist").status_code == 200


def test_it_survives_a_restart_and_is_listed(tmp_path: Path, databases: Databases) -> None:
    with secured_in_process(tmp_path, databases) as secured:
        made = secured.make_token(Role.OPERATOR, "x", owners=["a/*"])
    assert made["owners"] == ["a/*"]
    with secured_in_process(tmp_path, databases) as secured:
        with secured.client(made["token"]) as client:
            problem_of(client.put("/blocklist/nodes/n1/claims/b", json=claim()), 403)
        with secured.client(secured.admin) as admin:
            listed = admin.get("/tokens").json()["tokens"]
    owners = {it["name"]: it["owners"] for it in listed}
    assert (owners["x"], owners["some-operator"]) == (["a/*"], None)
