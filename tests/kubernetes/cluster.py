"""A Kubernetes control plane on loopback, from the program that `control_plane.py` builds. RBAC is on.

It has no nodes: `kubelets.py` adds them. The API server makes its own certificate, which is also its authority.
"""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx

from tests.integration.process import free_port, wait_until

Json = dict[str, Any]

ADMIN: Final = "system:masters"
_CONTROLLERS: Final = (
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "taint-eviction-controller",
)
_ACCOUNTS: Final = "/api/v1/namespaces/{}/serviceaccounts"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"


class Cluster:
    """One control plane in a folder; the components' logs are there, too. Use `running_cluster`.

    `url` is the API server's, `ca` the file with its authority, `token` the administrator's, `admin_kubeconfig` a file.
    """

    def __init__(self, program: Path, folder: Path, grace_seconds: int) -> None:
        self.folder = folder
        self._grace_seconds = grace_seconds
        self.url = f"https://127.0.0.1:{free_port()}"
        self.ca = folder / "certs" / "apiserver.crt"
        self.token = secrets.token_hex(16)
        self.admin_kubeconfig = folder / "admin.json"
        self._program = program
        self._etcd = f"http://127.0.0.1:{free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        users = {self.token: ("admin", ADMIN)}
        for component in ("kube-scheduler", "kube-controller-manager"):
            token = secrets.token_hex(16)
            users[token] = (f"system:{component}", ADMIN)
            (self.folder / f"{component}.json").write_text(self.kubeconfig(token))
        lines = (f'{token},{name},{name},"{group}"\n' for token, (name, group) in users.items())
        (self.folder / "tokens.csv").write_text("".join(lines))
        self.admin_kubeconfig.write_text(self.kubeconfig(self.token))
        key = ["openssl", "genrsa", "-out", "accounts.key", "2048"]
        subprocess.run(key, cwd=self.folder, check=True, capture_output=True)
        make_authority(self.folder, "client-ca")
        self._start_etcd()
        self.start_api_server()
        leaderless = ("--leader-elect=false", "--secure-port=0")
        self._start("kube-scheduler", "--kubeconfig=kube-scheduler.json", *leaderless)
        self._start(
            "kube-controller-manager",
            "--kubeconfig=kube-controller-manager.json",
            *leaderless,
            f"--controllers={','.join(_CONTROLLERS)}",
            "--service-account-private-key-file=accounts.key",
            f"--root-ca-file={self.ca}",
            f"--node-monitor-grace-period={self._grace_seconds}s",
        )
        self._wait(lambda: self._answers(_ACCOUNTS.format("default") + "/default"))

    def stop(self) -> None:
        """Kill all components: nothing of them is kept, and some take long to end."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def start_api_server(self) -> None:
        """Start it, on the same port as before, and wait until it is ready."""
        self._start(
            "kube-apiserver",
            f"--etcd-servers={self._etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.url.rpartition(':')[2]}",
            "--cert-dir=certs",
            "--endpoint-reconciler-type=none",
            "--token-auth-file=tokens.csv",
            "--client-ca-file=client-ca.crt",
            "--authorization-mode=RBAC",
            f"--service-account-issuer={self.url}",
            f"--service-account-jwks-uri={self.url}/openid/v1/jwks",
            "--service-account-key-file=accounts.key",
            "--service-account-signing-key-file=accounts.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true",
        )
        self._wait(lambda: self.ca.exists() and self.ca.read_text().count("END CERT") == 2)
        self._wait(lambda: self._answers("/readyz"))

    def kill_api_server(self) -> None:
        """Kill it with SIGKILL; clients' connections are reset."""
        process = self._processes["kube-apiserver"]
        process.kill()
        process.wait()

    def api(self, token: str | None = None, *, timeout: float = 30) -> httpx.Client:
        """A client of the API server, the administrator's without a token."""
        verify = ssl.create_default_context(cafile=str(self.ca))
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.url, verify=verify, headers=headers, timeout=timeout, trust_env=False)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """What `kubectl` prints, as the administrator; the test fails, and shows that, if it does."""
        command = [str(self._program), "kubectl", "--kubeconfig", str(self.admin_kubeconfig), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        assert not check or done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def make_namespace(self, name: str) -> None:
        with self.api() as api:
            api.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
            # Without it no pod is admitted.
            wait_until(lambda: api.get(_ACCOUNTS.format(name) + "/default").status_code == 200, seconds=120)

    def make_service_account(
        self, namespace: str, name: str, rules: Sequence[Json], *, cluster_wide: bool = False
    ) -> str:
        """A ServiceAccount with a Role, or a ClusterRole, of its name with these rules; its token."""
        kind = "ClusterRole" if cluster_wide else "Role"
        base = RBAC if cluster_wide else f"{RBAC}/namespaces/{namespace}"
        named: Json = {"metadata": {"name": name}}
        binding = {
            **named,
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        }
        with self.api() as api:
            api.post(_ACCOUNTS.format(namespace), json=named).raise_for_status()
            api.post(f"{base}/{kind.lower()}s", json={**named, "rules": list(rules)}).raise_for_status()
            api.post(f"{base}/{kind.lower()}bindings", json=binding).raise_for_status()
        return self.service_account_token(namespace, name)

    def service_account_token(self, namespace: str, name: str, *, audiences: Sequence[str] = ()) -> str:
        """A token of an existing ServiceAccount, valid for two hours."""
        spec = {"expirationSeconds": 7200, "audiences": list(audiences)}
        with self.api() as api:
            answer = api.post(f"{_ACCOUNTS.format(namespace)}/{name}/token", json={"spec": spec})
        return str(answer.raise_for_status().json()["status"]["token"])

    def kubeconfig(self, token: str) -> str:
        """A kubeconfig with this token, as JSON, which is YAML."""
        name = "test"
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": name, "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
                "users": [{"name": name, "user": {"token": token}}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "current-context": name,
            }
        )

    def _start_etcd(self) -> None:
        peer = f"http://127.0.0.1:{free_port()}"
        self._start(
            "etcd",
            "--data-dir=etcd",
            f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
        )

    def _start(self, component: str, *flags: str) -> None:
        command = [str(self._program), component, *flags]
        with (self.folder / f"{component}.log").open("ab") as log:
            self._processes[component] = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _wait(self, condition: Any) -> None:
        def holds() -> bool:
            for component, process in self._processes.items():
                log = self.folder / f"{component}.log"
                assert process.poll() is None, f"{component} has ended:\n{log.read_text(errors='replace')[-4000:]}"
            return bool(condition())

        wait_until(holds, seconds=150)

    def _answers(self, path: str) -> bool:
        with suppress(httpx.TransportError), self.api() as api:
            return api.get(path).status_code == 200
        return False


def make_authority(folder: Path, name: str) -> None:
    """An authority: the files `name`.crt and `name`.key."""
    _openssl(folder, "req", "-x509", *_new_key(name), "-subj", f"/CN={name}", "-days", "2", "-out", f"{name}.crt")


def sign_certificate(folder: Path, authority: str, name: str, subject: str) -> None:
    """A certificate of this authority in the same folder: the files `name`.crt and `name`.key."""
    _openssl(folder, "req", *_new_key(name), "-subj", subject, "-out", f"{name}.csr")
    signed = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "1")
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")


def _new_key(name: str) -> Sequence[str]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@contextmanager
def running_cluster(program: Path, folder: Path, *, grace_seconds: int = 300) -> Iterator[Cluster]:
    """A cluster until the end of the block; it is ready within seconds on an idle machine.

    A node without heartbeats for `grace_seconds` becomes unreachable; a busy machine delays them.
    """
    cluster = Cluster(program, folder, grace_seconds)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
