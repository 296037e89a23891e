"""The chart in deploy/helm/, installed with Helm: its pods are admitted and run, with their users, files and probes."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo.java_home import java_home
from tests.debian import MissingError
from tests.flink.cluster import NODES, FlinkCluster
from tests.flink.package import FLINK_2, flink_lib
from tests.integration.bodies import block
from tests.integration.process import ROOT, wait_until
from tests.kubernetes import page
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import not_run
from tests.kubernetes.containers import ContainerKubelets, OtherImage, PodRun, can_run_containers
from tests.kubernetes.helm_program import CHART, Helm, HelmError
from tests.kubernetes.test_chart import restricted_namespace
from tests.postgres import PostgresServer
from tests.yarn.cluster import YarnCluster
from tests.yarn.jars import yarn_classpath_or_skip

pytestmark = pytest.mark.timeout(900)

Json = dict[str, Any]
NODE = "container-80"
COMPONENTS = ("service", "manager", "yarn", "flink")
FLINK = "127.0.0.35"
SECONDS = 240


class Release:
    """The chart in a namespace of its own, which admits only pods of the standard `restricted`."""

    def __init__(self, cluster: Cluster, helm: Helm, containers: ContainerKubelets, namespace: str) -> None:
        self.cluster = cluster
        self.containers = containers
        self.namespace = restricted_namespace(cluster, namespace)
        self._helm = helm

    def make_volume(self, folder: Path) -> None:
        """A volume for the claim of SQLite."""
        spec: Json = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": self.namespace, "name": "blocklist-data"},
        }
        self.containers.claims[f"{self.namespace}/blocklist-data"] = folder
        with self.cluster.api() as api:
            body = {"metadata": {"name": self.namespace}, "spec": spec}
            api.post("/api/v1/persistentvolumes", json=body).raise_for_status()

    def helm(self, command: str, *values: str, timeout: str = "240s", **options: str) -> str:
        """Run `install` or `upgrade` and wait until everything is ready. Raises HelmError."""
        pinned = rf"nodeSelector.kubernetes\.io/hostname={NODE}"
        sets = [word for value in (pinned, *values) for word in ("--set", value)]
        place = ["--namespace", self.namespace, "--wait", "--timeout", timeout]
        return self._helm.run(command, "blocklist", str(CHART), *place, *sets)

    def run_helm(self, *arguments: str) -> str:
        """Run another command on the release, and wait."""
        return self._helm.run(
            *arguments, "blocklist", "--namespace", self.namespace, "--wait", "--timeout", f"{SECONDS}s"
        )

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments)

    def token(self, account: str, audience: str = "blocklist") -> str:
        """As docs/kubernetes-service.md says."""
        return self.kubectl("create", "token", account, "--audience", audience).strip()

    def pods(self, component: str = "service", count: int = 1) -> list[PodRun]:
        found: list[PodRun] = []

        def all_there() -> bool:
            found[:] = self.containers.runs(self.namespace, component)
            return len(found) == count

        wait_until(all_there, seconds=SECONDS)
        return found

    def client(self, token: str | None = None, pod: PodRun | None = None) -> httpx.Client:
        """A client of a pod of the service, past the Service: nothing here routes to that."""
        address = (pod or self.pods()[0]).address
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"http://{address}:8224", headers=headers, timeout=60, trust_env=False)


MakeRelease = Callable[[str], Release]


@pytest.fixture(scope="module")
def containers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerKubelets]:
    """The kubelet of a node that runs containers. Other modules do not have this node."""
    if not can_run_containers():
        raise not_run("installations of the chart", MissingError("mounting in a namespace of its own needs root"))
    with ContainerKubelets(cluster, tmp_path_factory.mktemp("containers")) as kubelets, kubelets.nodes(NODE):
        yield kubelets


@pytest.fixture
def release(cluster: Cluster, helm: Helm, containers: ContainerKubelets) -> Iterator[MakeRelease]:
    made: list[Release] = []

    def make(namespace: str) -> Release:
        made.append(Release(cluster, helm, containers, namespace))
        return made[-1]

    yield make
    for each in made:
        show_logs(containers, each.namespace)
        cluster.kubectl("delete", "namespace", each.namespace, "--wait=false")


def show_logs(containers: ContainerKubelets, namespace: str) -> None:
    """For the report of a test that fails."""
    for run in [run for name in COMPONENTS for run in containers.runs(namespace, name)]:
        sys.stderr.write(f"--- {run.pod['metadata']['name']}\n{run.log()}\n")


def taints(cluster: Cluster) -> list[str]:
    with cluster.api() as api:
        node = api.get(f"/api/v1/nodes/{NODE}").raise_for_status().json()
    return [taint["key"] for taint in node["spec"].get("taints", ())]


def test_sqlite_the_manager_and_service_accounts(
    release: MakeRelease, cluster: Cluster, containers: ContainerKubelets, tmp_path: Path
) -> None:
    """From the installation to its end: tokens, a block that the node gets, an upgrade, a failed one, a new release."""
    here = release("chart-sqlite")
    here.make_volume(tmp_path / "data")
    values = [
        "kubernetesManager.enabled=true",
        f"serviceAccountTokens.roles.{here.namespace}/driver=listener",
        "serviceAccountTokens.roles.elsewhere/*=admin",
    ]
    notes = here.helm("install", *values)
    assert "kubectl -n chart-sqlite create token blocklist-admin --audience blocklist" in notes
    _check_container(here.pods()[0])
    _check_tokens(here)

    admin = here.token("blocklist-admin")
    with here.client(admin) as client:
        client.put(f"/blocklist/nodes/{NODE}", json=block(cause="Disk errors")).raise_for_status()
    wait_until(lambda: "blocklist/blocked" in taints(cluster), seconds=SECONDS)

    # The node that they run on is blocked now: the service and the manager are started there nevertheless.
    here.helm("upgrade", *values, "settings.MAX_BLOCKED=1")
    with here.client(admin) as client:
        assert list(client.get("/blocklist").raise_for_status().json()) == [NODE]
        assert client.put("/blocklist/nodes/other", json=block()).status_code == 409, "the new setting applies"

    with pytest.raises(HelmError):
        here.helm("upgrade", *values, "settings.DEFAULT_DURATION=soon", timeout="5s")
    wait_until(lambda: "BLOCKLIST_DEFAULT_DURATION" in here.pods()[0].log(), seconds=SECONDS)
    here.run_helm("rollback")
    with here.client(admin) as client:
        assert client.get(f"/blocklist/nodes/{NODE}").status_code == 200

    with here.client(admin) as client:
        client.delete(f"/blocklist/nodes/{NODE}").raise_for_status()
        client.put("/blocklist/nodes/kept", json=block()).raise_for_status()
    wait_until(lambda: not taints(cluster), seconds=SECONDS)
    pods = here.pods()
    here.run_helm("uninstall")
    wait_until(lambda: not containers.runs(here.namespace, "service"), seconds=SECONDS)
    wait_until(lambda: pods[0].exit_code is not None, seconds=SECONDS)
    assert pods[0].exit_code == 0, pods[0].log()
    # The claim is kept, and the next release of this name has it.
    here.helm("install")
    with here.client(here.token("blocklist-admin")) as client:
        assert client.get("/blocklist/nodes/kept").status_code == 200


def _check_container(run: PodRun) -> None:
    """What the process in the container may do, as its kernel sees it."""
    process = Path("/proc", str(run.pid))
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    assert status["Uid"].split() == ["8224"] * 4
    assert status["Gid"].split() == ["8224"] * 4
    assert (status["CapEff"], status["CapBnd"], status["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    (root,) = [fields for fields in mounts if fields[4] == "/"]
    assert root[5].split(",")[0] == "ro"
    token = process / "root" / "data" / "admin.token"
    assert (token.stat().st_mode & 0o777, token.stat().st_uid) == (0o600, 8224)


def _check_tokens(here: Release) -> None:
    """Each ServiceAccount has its role, and only a token for this audience counts."""
    for account in ("driver", "stranger"):
        here.kubectl("create", "serviceaccount", account)
    body = {"role": "JOB_MASTER", "sessionId": "s1"}
    with here.client(here.token("driver")) as driver:
        assert driver.put("/listeners/job", json=body).status_code == 201
        assert driver.put("/blocklist/nodes/other", json=block()).status_code == 403
        driver.delete("/listeners/job?sessionId=s1")
    with here.client(here.token("blocklist-admin")) as admin:
        assert admin.get("/tokens").status_code == 200
        change = admin.put("/blocklist/nodes/other", json=block())
        assert change.status_code == 201
        (made,) = admin.get("/blocklist/changes?node=other").raise_for_status().json()["changes"]
        assert made["createdBy"] == f"system:serviceaccount:{here.namespace}:blocklist-admin"
        admin.delete("/blocklist/nodes/other").raise_for_status()
        wait_until(lambda: "kubernetes" in admin.get("/listeners").text, seconds=SECONDS)
    with here.client(here.token("stranger")) as stranger:
        answer = stranger.get("/blocklist")
        assert answer.status_code == 403
        assert f"The ServiceAccount {here.namespace}/stranger has no role" in answer.json()["detail"]
    with here.client(here.token("driver", audience="https://kubernetes.default.svc")) as other:
        answer = other.get("/blocklist")
        assert (answer.status_code, answer.json()["detail"]) == (401, "The JWT is for another audience.")
    with here.client() as nobody:
        assert nobody.get("/blocklist").status_code == 401


def test_replicas_on_postgresql_over_tls(release: MakeRelease, tmp_path: Path) -> None:
    """With tokens from Secrets only. An outage of the database keeps no replica from answering reads."""
    here = release("chart-postgresql")
    name = f"blocklist.{here.namespace}.svc"
    _certificate(tmp_path, name)
    admin = "a" * 40
    with PostgresServer() as server:
        here.kubectl("create", "secret", "generic", "db", f"--from-literal=uri={server.create('chart')}")
        here.kubectl("create", "secret", "generic", "admin", f"--from-literal=token={admin}")
        files = [f"--from-file={file}={tmp_path / file}" for file in ("tls.crt", "tls.key", "ca.crt")]
        here.kubectl("create", "secret", "generic", "tls", *files)
        values = ["replicas=2", "database.secretName=db", "database.key=uri", "adminToken.secretName=admin"]
        values += ["tls.secretName=tls", "serviceAccountTokens.enabled=false", "settings.DATABASE_TIMEOUT=30s"]
        here.helm("install", *values)
        first, second = (_tls_client(here, run, admin, tmp_path, name) for run in here.pods(count=2))
        with first, second:
            made = first.put("/blocklist/nodes/n1", json=block())
            made.raise_for_status()
            least = {"minRevision": made.headers["Blocklist-Revision"]}
            assert list(second.get("/blocklist", params=least).json()) == ["n1"]
            token = first.post("/tokens", json={"name": "kubernetes", "role": "manager"}).json()["token"]
            here.kubectl("create", "secret", "generic", "manager", f"--from-literal=token={token}")
            more = ["kubernetesManager.enabled=true", "kubernetesManager.tokenSecretName=manager"]
        # Its TLS verifies the name of the Service.
        here.helm("upgrade", *values, *more)
        runs = here.pods(count=2)
        clients = [_tls_client(here, run, admin, tmp_path, name) for run in runs]
        wait_until(lambda: '"kubernetes"' in clients[0].get("/listeners").text, seconds=SECONDS)
        server.stop()
        for client in clients:
            wait_until(lambda client=client: client.get("/readyz").status_code == 503, seconds=SECONDS)  # type: ignore[misc]
            answer = client.get("/blocklist")
            assert (answer.status_code, "Age" in answer.headers) == (200, True)
            assert client.put("/blocklist/nodes/n2", json=block()).status_code == 503
            client.close()
        ready = "jsonpath={.items[*].status.containerStatuses[*].ready}"
        selected = "--selector=app.kubernetes.io/component=service"
        assert here.kubectl("get", "pods", selected, "-o", ready).split() == ["true", "true"]
        assert [run.restarts for run in runs] == [0, 0]


def _certificate(folder: Path, name: str) -> None:
    files = ["-keyout", "tls.key", "-out", "tls.crt", "-days", "2", "-nodes"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *files, "-subj", f"/CN={name}"]
    extension = ["-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"]
    subprocess.run([*command, *extension], cwd=folder, check=True, capture_output=True)
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())


def _tls_client(here: Release, run: PodRun, token: str, folder: Path, name: str) -> httpx.Client:
    """A client that connects to the pod, and verifies the certificate of the Service."""

    class Transport(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            request.extensions = {**request.extensions, "sni_hostname": name}
            return super().handle_request(request)

    tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    headers = {"Authorization": f"Bearer {token}"}
    url = f"https://{run.address}:8224"
    return httpx.Client(base_url=url, headers=headers, timeout=90, transport=Transport(verify=tls, trust_env=False))


@pytest.mark.long
def test_the_yarn_manager_and_the_bridge_of_flink_obey_in_their_pods(
    release: MakeRelease, containers: ContainerKubelets, tmp_path: Path
) -> None:
    """As the chart starts them: with their users, tokens and files, on a real YARN and a real Flink."""
    here = release("chart-others")
    here.make_volume(tmp_path / "data")
    (tmp_path / "yarn").mkdir()
    with ExitStack() as stack:
        yarn = stack.enter_context(YarnCluster(tmp_path / "yarn", yarn_classpath_or_skip(), nodes=1))
        java, lib = java_home(), flink_lib(FLINK_2)
        flink = stack.enter_context(FlinkCluster(java / "bin" / "java", lib, tmp_path / "flink", host=FLINK))
        flink.start(1)
        containers.other_images["flink:test"] = _flink_image(java, lib)
        here.kubectl("create", "configmap", "flink-conf", f"--from-file={flink.conf_dir}")
        values = ["yarnManager.enabled=true", "yarnManager.user=root", f"yarnManager.resourceManagers[0]={yarn.url}"]
        values += ["flinkBridge.enabled=true", "flinkBridge.image=flink:test", "flinkBridge.configMapName=flink-conf"]
        here.helm("install", *values)
        pods = [*here.pods("yarn"), *here.pods("flink")]
        with here.client(here.token("blocklist-admin")) as client:

            def listeners() -> dict[str, str | None]:
                """The error of each; none while the service has not read the keys of the API server."""
                return {it["id"]: it["lastError"] for it in client.get("/listeners").json().get("listeners", ())}

            wait_until(lambda: listeners().keys() == {"yarn", "flink"}, seconds=SECONDS)
            for node in (yarn.nodes[0], NODES[0]):
                client.put(f"/blocklist/nodes/{node}", json=block()).raise_for_status()
            wait_until(lambda: yarn.rest().node(yarn.nodes[0]).get("nodeLabels") == ["blocklist"], seconds=SECONDS)
            wait_until(lambda: flink.task_managers()["tm-1"], seconds=SECONDS)
            assert listeners() == {"yarn": None, "flink": None}
        here.run_helm("uninstall")
        for pod in pods:
            wait_until(lambda pod=pod: pod.exit_code is not None, seconds=SECONDS)  # type: ignore[misc]
            assert (pod.exit_code, pod.restarts) == (0, 0), pod.log()


def _flink_image(java: Path, lib: Path) -> OtherImage:
    """Flink's own has Java, the jars and, as docs/kubernetes-service.md adds it, the package."""
    # Debian's Java has links to its configuration there.
    files = {str(path): path for path in Path("/etc").glob("java-*")}
    return OtherImage({**files, "/opt/flink/lib": lib}, {"JAVA_HOME": str(java)})


def test_kubectl_applies_the_files_and_the_service_runs(
    cluster: Cluster, containers: ContainerKubelets, tmp_path: Path
) -> None:
    """`kubectl apply -k deploy/kubernetes`, in the namespace that it makes, with the manager and its rights."""
    (tmp_path / "data").mkdir()
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(tmp_path / "data")},
        "claimRef": {"namespace": "blocklist", "name": "blocklist-data"},
    }
    containers.claims["blocklist/blocklist-data"] = tmp_path / "data"
    with cluster.api() as api:
        body = {"metadata": {"name": "for-kubectl"}, "spec": volume}
        api.post("/api/v1/persistentvolumes", json=body).raise_for_status()
    files = str(ROOT / "deploy" / "kubernetes")
    printed = cluster.kubectl("apply", "--server-side", "--validate=strict", "-k", files)
    assert "Warning" not in printed, printed
    try:
        for workload in ("statefulset/blocklist", "deployment/blocklist-manager"):
            cluster.kubectl("-n", "blocklist", "rollout", "status", workload, "--timeout=110s")
        with kubectl_client(cluster, containers) as client:
            client.put(f"/blocklist/nodes/{NODE}", json=block()).raise_for_status()
            wait_until(lambda: "blocklist/blocked" in taints(cluster), seconds=SECONDS)
            client.delete(f"/blocklist/nodes/{NODE}").raise_for_status()
            wait_until(lambda: not taints(cluster), seconds=SECONDS)
        _check_restore(cluster, containers)
        again = cluster.kubectl("apply", "--server-side", "--validate=strict", "-k", files)
        assert "conflict" not in again.lower()
    finally:
        show_logs(containers, "blocklist")
        cluster.kubectl("delete", "-k", files, "--wait=false")


def kubectl_client(cluster: Cluster, containers: ContainerKubelets) -> httpx.Client:
    """An admin at the service in the namespace blocklist."""
    token = cluster.kubectl("-n", "blocklist", "create", "token", "blocklist-admin", "--audience", "blocklist")
    (run,) = containers.runs("blocklist", "service")
    headers = {"Authorization": f"Bearer {token.strip()}"}
    return httpx.Client(base_url=f"http://{run.address}:8224", headers=headers, timeout=60, trust_env=False)


def _check_restore(cluster: Cluster, containers: ContainerKubelets) -> None:
    """The commands of docs/kubernetes-service.md; those of `kubectl exec` run in the same containers."""
    with kubectl_client(cluster, containers) as client:
        client.put("/blocklist/nodes/saved", json=block()).raise_for_status()
        (run,) = containers.runs("blocklist", "service")
        commands = page.commands("kubectl", "Back up, and restore")
        saved = b""
        for words in commands:
            if words[3:5] == ["exec", "blocklist-0"]:
                saved = run.execute(*words[6:]) or saved
        assert saved.startswith(b"SQLite format 3")
        history = client.put("/blocklist/nodes/late", json=block()).headers["Blocklist-History"]
    for words in commands[
        commands.index(["kubectl", "-n", "blocklist", "scale", "statefulset/blocklist", "--replicas=0"]) :
    ]:
        if "exec" in words:
            (restoring,) = containers.runs("blocklist", "restore")
            restoring.execute(*words[words.index("--") + 1 :], stdin=saved if "-i" in words else b"")
        else:
            cluster.kubectl(*words[1:])
    cluster.kubectl("-n", "blocklist", "rollout", "status", "statefulset/blocklist", "--timeout=110s")
    with kubectl_client(cluster, containers) as client:
        answer = client.get("/blocklist")
        assert list(answer.json()) == ["saved"]
        assert answer.headers["Blocklist-History"] != history
