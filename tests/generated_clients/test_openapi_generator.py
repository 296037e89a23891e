"""openapi-generator's clients for Java and Go compile as they are generated, and work."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from blocklist.model.claims import Role
from tests.debian import require
from tests.generated_clients import document
from tests.generated_clients.conftest import run
from tests.integration.process import ROOT
from tests.integration.secured import SecuredInProcess

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

VERSION: Final = "7.25.0"
JAVA_PROGRAM: Final = """
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.ApiResponse;
import org.openapitools.client.api.*;
import org.openapitools.client.auth.HttpBearerAuth;
import org.openapitools.client.model.*;

public class Program {
    interface Call { Object make() throws ApiException; }

    static int failing(Call call) {
        try {
            call.make();
            return 0;
        } catch (ApiException error) {
            return error.getCode();
        }
    }

    public static void main(String[] arguments) throws ApiException {
        ApiClient client = new ApiClient().setBasePath(arguments[0]);
        ((HttpBearerAuth) client.getAuthentication("bearer")).setBearerToken(arguments[1]);
        NodesApi nodes = new NodesApi(client);
        BlockRequest hot = new BlockRequest()
            .action(BlockRequest.ActionEnum.MARK_BLOCKED).cause("Hot machine").endTimestamp("4102444800000");

        ApiResponse<Response200Blocknode> blocked =
            nodes.blockNodeWithHttpInfo("java-1", hot, null, null, null, null, "wait=1", null, null);
        int again = failing(() -> nodes.blockNode("java-1", hot, null, null, null, null, null, null, null));
        DryRunBody dry = nodes.blockNode("java-3", hot, null, "true", null, null, null, null, null).getDryRunBody();
        Map<String, Object> several = nodes.blockNodes(Map.of("java-2", hot), null, null, null, null, null, null);
        NodeBody one = nodes.getBlockedNode("java-1", null);
        Map<String, ListedNode> listed = new TheListApi(client).listBlockedNodes(true, null, null, null, null, null);
        ApiResponse<Void> removed = nodes.unblockNodeWithHttpInfo("java-1", null, null, "wait=1", null, null, null);
        int absent = failing(() -> { nodes.unblockNode("java-1", null, null, null, null, null, null); return null; });
        IdentityBody identity = new TokensApi(client).getIdentity();

        System.out.println(String.join("\\n",
            List.of(blocked.getStatusCode(), again, removed.getStatusCode(), absent).toString(),
            List.of(blocked.getData().getNodeBody().getEndTimestamp(), one.getEndTimestamp()).toString(),
            List.of(blocked.getHeaders().get("preference-applied"), several.keySet()).toString(),
            new TreeSet<>(listed.keySet()) + " " + listed.get("java-1").getRevision().getClass().getSimpleName(),
            dry.getNodes().get(0).getNode().getId() + " " + dry.getDryRun() + " " + identity.getRole()));
    }
}
"""
GO_PROGRAM: Final = """
package main

import (
	"context"
	"fmt"
	"os"

	blocklist "github.com/GIT_USER_ID/GIT_REPO_ID"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	configuration := blocklist.NewConfiguration()
	configuration.Servers = blocklist.ServerConfigurations{{URL: os.Args[1]}}
	client := blocklist.NewAPIClient(configuration)
	ctx := context.WithValue(context.Background(), blocklist.ContextAccessToken, os.Args[2])
	hot := blocklist.NewBlockRequest("MARK_BLOCKED", "Hot machine")
	hot.SetEndTimestamp("4102444800000")

	blocked, response, err := client.NodesAPI.BlockNode(ctx, "go-1").BlockRequest(*hot).Prefer("wait=1").Execute()
	check(err)
	_, again, _ := client.NodesAPI.BlockNode(ctx, "go-1").BlockRequest(*hot).Execute()
	dry, _, err := client.NodesAPI.BlockNode(ctx, "go-3").BlockRequest(*hot).DryRun("true").Execute()
	check(err)
	several := map[string]blocklist.BlockRequest{"go-2": *hot}
	_, many, err := client.NodesAPI.BlockNodes(ctx).RequestBody(several).Execute()
	check(err)
	one, _, err := client.NodesAPI.GetBlockedNode(ctx, "go-1").Execute()
	check(err)
	listed, _, err := client.TheListAPI.ListBlockedNodes(ctx).Details(true).Execute()
	check(err)
	removed, err := client.NodesAPI.UnblockNode(ctx, "go-1").Prefer("wait=1").Execute()
	check(err)
	absent, _ := client.NodesAPI.UnblockNode(ctx, "go-1").Execute()

	fmt.Println(response.StatusCode, again.StatusCode, many.StatusCode, removed.StatusCode, absent.StatusCode)
	fmt.Println(blocked.NodeBody.GetEndTimestamp(), one.GetEndTimestamp(), response.Header.Get("Preference-Applied"))
	first, second := (*listed)["go-1"], (*listed)["go-2"]
	fmt.Println(first.GetCause(), second.GetCause(), first.GetRevision() > 0)
	fmt.Println(dry.DryRunBody.Nodes[0].Node.GetId(), dry.DryRunBody.GetDryRun())
}
"""


@pytest.fixture(scope="session")
def generator() -> Path:
    """The jar of openapi-generator, from Maven Central."""
    folder = ROOT / "build" / "generators"
    jar = folder / f"openapi-generator-cli-{VERSION}.jar"
    if not jar.exists():
        artifact = f"org.openapitools:openapi-generator-cli:{VERSION}"
        run([maven(), "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"])
    return jar


def maven() -> str:
    return require({"mvn": "maven"})["mvn"]


def generate(generator: Path, language: str, folder: Path, **properties: str) -> None:
    given = ",".join(f"{name}={value}" for name, value in properties.items())
    java = require({"java": "default-jdk-headless"})["java"]
    arguments = ["generate", "-i", str(document.PATH), "-g", language, "-o", str(folder)]
    more = ["--additional-properties", given] if given else []
    run([java, "-jar", str(generator), *arguments, *more])


def operations(folder: Path, pattern: str) -> str:
    return "".join(path.read_text() for path in folder.glob(pattern))


def test_the_client_for_java_compiles_and_works(generator: Path, tmp_path: Path, secured: SecuredInProcess) -> None:
    generate(generator, "java", tmp_path)
    sources = operations(tmp_path, "src/main/java/org/openapitools/client/api/*.java")
    assert [name for name in document.OPERATION_IDS if f" {name}(" not in sources] == []
    run([maven(), "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=classpath"], cwd=tmp_path)
    classpath = (tmp_path / "classpath").read_text().strip()
    files = [str(path) for path in (tmp_path / "src/main/java").rglob("*.java")]
    (tmp_path / "Program.java").write_text(JAVA_PROGRAM)
    javac = require({"javac": "default-jdk-headless"})["javac"]
    run([javac, "-nowarn", "-d", "out", "-cp", classpath, "Program.java", *files], cwd=tmp_path)
    token = secured.tokens[Role.ADMIN]
    java = require({"java": "default-jdk-headless"})["java"]
    try:
        printed = run([java, "-cp", f"out:{classpath}", "Program", secured.url, token], cwd=tmp_path)
    finally:
        with secured.client(secured.admin) as client:
            client.delete("/blocklist/nodes/java-2")
    assert printed.splitlines() == [
        "[201, 409, 200, 404]",
        "[4102444800000, 4102444800000]",
        "[[wait=1], [java-2]]",
        "[java-1, java-2] Long",
        "java-3 true admin",
    ]


def test_the_client_for_go_compiles_and_works(generator: Path, tmp_path: Path, secured: SecuredInProcess) -> None:
    go = require({"go": "golang-go"})["go"]
    generate(generator, "go", tmp_path, packageName="blocklist")
    sources = operations(tmp_path, "api_*.go")
    functions = [f"{name[0].upper()}{name[1:]}(ctx context.Context" for name in document.OPERATION_IDS]
    assert [name for name in functions if name not in sources] == []
    shutil.rmtree(tmp_path / "test")
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "main.go").write_text(GO_PROGRAM)
    env = os.environ | {"GOFLAGS": "-mod=mod"}
    run([go, "vet", "./..."], cwd=tmp_path, env=env)
    arguments = [secured.url, secured.tokens[Role.ADMIN]]
    printed = run([go, "run", "./program", *arguments], cwd=tmp_path, env=env)
    assert printed.splitlines() == [
        "201 409 200 200 404",
        "4102444800000 4102444800000 wait=1",
        "Hot machine Hot machine true",
        "go-3 true",
    ]
