"""openapi-typescript generates types for every operation of the API document; a program that uses them works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from blocklist.model.claims import Role
from tests.debian import require
from tests.generated_clients import document
from tests.generated_clients.conftest import run
from tests.integration.secured import SecuredInProcess

pytestmark = pytest.mark.timeout(600)

PROGRAM: Final = """
import createClient from "openapi-fetch";
import type { components, paths } from "./blocklist.js";

declare const process: { argv: [string, string, string, string] };
const [, , baseUrl, token] = process.argv;
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
const path = { node_id: "typescript-1" };
const hot: components["schemas"]["BlockRequest"] = {
  action: "MARK_BLOCKED",
  cause: "Hot machine",
  endTimestamp: "4102444800000",
};
const header = { prefer: "wait=1" };

const blocked = await client.PUT("/blocklist/nodes/{node_id}", { params: { path, header }, body: hot });
const again = await client.PUT("/blocklist/nodes/{node_id}", { params: { path }, body: hot });
const one = await client.GET("/blocklist/nodes/{node_id}", { params: { path } });
const listed = await client.GET("/blocklist", { params: { query: { details: true } } });
const ids: string[] = Object.keys(listed.data ?? {});
const end: string | undefined = one.data?.endTimestamp;
const removed = await client.DELETE("/blocklist/nodes/{node_id}", { params: { path, header } });
const absent = await client.DELETE("/blocklist/nodes/{node_id}", { params: { path } });
const detail: string | undefined = absent.error?.detail;

console.log(
  JSON.stringify({
    statuses: [blocked, again, one, listed, removed, absent].map(({ response }) => response.status),
    applied: [blocked, removed].map(({ response }) => response.headers.get("Preference-Applied")),
    end,
    ids,
    detail,
  }),
);
"""
# Fails to compile if the types have an operation more or less than the document.
OPERATIONS: Final = """
import type { operations } from "./blocklist.js";

export const all: Record<keyof operations, true> = %s;
"""
WRONG: Final = """
import type { components } from "./blocklist.js";

export const hot: components["schemas"]["BlockRequest"] = { action: "MARK", cause: "Hot machine" };
"""
OPTIONS: Final = {
    "strict": True,
    "target": "ES2022",
    "module": "nodenext",
    "lib": ["ES2022", "DOM", "DOM.Iterable"],
    "types": [],
}


@pytest.fixture(scope="module")
def project(node_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a TypeScript project with the generated types."""
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "node_modules").symlink_to(node_modules)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "include": ["*.ts"]}))
    run(node_command("openapi-typescript", str(document.PATH), "--output", "blocklist.d.ts"), cwd=folder)
    return folder


def node_command(tool: str, *arguments: str) -> list[str]:
    return [require({"node": "nodejs"})["node"], f"node_modules/.bin/{tool}", *arguments]


def test_the_types_refuse_a_wrong_body(project: Path) -> None:
    wrong = project / "wrong.ts"
    wrong.write_text(WRONG)
    with pytest.raises(AssertionError, match="Type '\"MARK\"' is not assignable"):
        run(node_command("tsc", "--noEmit"), cwd=project)
    wrong.unlink()


def test_the_typescript_client_has_every_operation_and_blocks_reads_and_unblocks(
    project: Path, secured: SecuredInProcess
) -> None:
    ids = dict.fromkeys(document.OPERATION_IDS, True)
    (project / "operations.ts").write_text(OPERATIONS % json.dumps(ids))
    (project / "program.ts").write_text(PROGRAM)
    run(node_command("tsc"), cwd=project)
    node = require({"node": "nodejs"})["node"]
    done = json.loads(run([node, "program.js", secured.url, secured.tokens[Role.ADMIN]], cwd=project))
    assert done["statuses"] == [201, 409, 200, 200, 200, 404]
    assert done["applied"] == ["wait=1", "wait=1"]
    assert done["end"] == "4102444800000"
    assert "typescript-1" in done["ids"]
    assert "typescript-1" in done["detail"]
    with secured.client(secured.admin) as client:
        assert "typescript-1" not in client.get("/blocklist").json()
