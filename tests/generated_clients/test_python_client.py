"""openapi-python-client generates a client for every operation of the API document, and that client works."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final

import pytest

from blocklist.model.claims import Role
from tests.generated_clients import document
from tests.generated_clients.conftest import run
from tests.integration.secured import SecuredInProcess

pytestmark = pytest.mark.timeout(600)

PROGRAM: Final = """
import json
import sys

from blocklist_client import AuthenticatedClient
from blocklist_client.api.nodes import block_node, block_nodes, get_blocked_node, unblock_node
from blocklist_client.api.the_list import list_blocked_nodes
from blocklist_client.models import BlockNodesBody, BlockRequest

url, token = sys.argv[1:]
hot = BlockRequest.from_dict({"action": "MARK_BLOCKED", "cause": "Hot machine", "endTimestamp": "4102444800000"})
with AuthenticatedClient(base_url=url, token=token, raise_on_unexpected_status=True) as client:
    blocked = block_node.sync_detailed("python-1", client=client, body=hot, prefer="wait=1")
    again = block_node.sync_detailed("python-1", client=client, body=hot)
    several = block_nodes.sync_detailed(client=client, body=BlockNodesBody.from_dict({"python-2": hot.to_dict()}))
    one = get_blocked_node.sync_detailed("python-1", client=client)
    listed = list_blocked_nodes.sync_detailed(client=client, details=True)
    etag = listed.headers["etag"]
    unchanged = list_blocked_nodes.sync_detailed(client=client, details=True, if_none_match=etag)
    removed = unblock_node.sync_detailed("python-1", client=client, prefer="wait=1")
    absent = unblock_node.sync_detailed("python-1", client=client)
answers = [blocked, again, several, one, listed, unchanged, removed, absent]
json.dump(
    {
        "statuses": [int(answer.status_code) for answer in answers],
        "blocked": blocked.parsed.to_dict(),
        "applied": [answer.headers["Preference-Applied"] for answer in (blocked, removed)],
        "conflict": again.parsed.blocked_node.to_dict(),
        "one": one.parsed.to_dict(),
        "listed": sorted(listed.parsed.to_dict()),
        "absent": absent.parsed.detail,
    },
    sys.stdout,
)
"""


@pytest.fixture(scope="module")
def client_folder(generator_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the generated package. A warning, such as for an operation that is left out, is a failure."""
    folder = tmp_path_factory.mktemp("python_client") / "client"
    # It formats what it has generated with its own ruff.
    env = os.environ | {"PATH": f"{generator_python.parent}:{os.environ['PATH']}"}
    generate = [str(generator_python), "-m", "openapi_python_client", "generate", "--fail-on-warning"]
    run([*generate, "--path", str(document.PATH), "--output-path", str(folder)], env=env)
    return folder


def snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def test_every_operation_is_generated_for_python(client_folder: Path) -> None:
    modules = [path.stem for path in client_folder.glob("*/api/*/*.py") if path.stem != "__init__"]
    assert sorted(modules) == sorted(map(snake_case, document.OPERATION_IDS))


def test_the_python_client_blocks_reads_and_unblocks(
    client_folder: Path, generator_python: Path, secured: SecuredInProcess
) -> None:
    env = os.environ | {"PYTHONPATH": str(client_folder)}
    arguments = [secured.url, secured.tokens[Role.ADMIN]]
    done = json.loads(run([str(generator_python), "-c", PROGRAM, *arguments], env=env))
    assert done["statuses"] == [201, 409, 200, 200, 200, 304, 200, 404]
    assert done["blocked"]["endTimestamp"] == "4102444800000"
    assert done["blocked"] == done["conflict"] == done["one"]
    assert done["applied"] == ["wait=1", "wait=1"]
    assert set(done["listed"]) >= {"python-1", "python-2"}
    assert "python-1" in done["absent"]
    with secured.client(secured.admin) as client:
        assert {"python-1", "python-2"} & set(client.get("/blocklist").json()) == {"python-2"}
