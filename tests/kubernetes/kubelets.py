"""Stands in for the kubelets of a cluster's nodes: a pod that is bound to one of them runs as a local process.

A node with the network N has 127.0.N.0/24, and each of its pods an address in it. The first container's image selects
how its words become a command (`Kubelets.images`); an unknown image means: run the words as they are.
"""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import httpx

from tests.integration.process import wait_until
from tests.kubernetes.cluster import Cluster, Json
from tests.kubernetes.node_objects import hosts_file, lease, node_object, now, ready_conditions
from tests.kubernetes.watching import watch

STRATEGIC: Final = {"Content-Type": "application/strategic-merge-patch+json"}
_HEARTBEAT: Final = 10.0
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """What an image makes a command from: the words of the container, its environment and the pod's address."""

    words: Sequence[str]
    environment: Mapping[str, str]
    address: str


Image = Callable[[Container], Sequence[str]]
"""Makes the command of a container."""


@dataclass(slots=True)
class _Pod:
    """A pod that runs, or ran, here."""

    process: subprocess.Popen[bytes]
    deleted: bool = False


@dataclass(slots=True)
class _Node:
    network: int
    pods: int = 1
    uid: str = ""


@dataclass
class Kubelets:
    """The kubelets of the nodes that are added. Use `running_kubelets`.

    `images` maps a container's image to what makes its command; `environment` is added to that of each container.
    `hosts` is a file as /etc/hosts with the names of services; `folder` has a folder for each pod, named by its uid, in
    which it runs. Several of these in one cluster have folders with different names.
    """

    cluster: Cluster
    images: dict[str, Image] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    folder_name: str = "pods"

    def __post_init__(self) -> None:
        self.folder = self.cluster.folder / self.folder_name
        self.folder.mkdir()
        self.hosts = self.cluster.folder / f"{self.folder_name}-hosts"
        self.hosts.write_text(hosts_file())
        self._api = self.cluster.api()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._nodes: dict[str, _Node] = {}
        self._seen: set[str] = set()
        self._pods: dict[str, _Pod] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for work in (self._send_heartbeats, self._watch_pods):
            self._run(work)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for pod in list(self._pods.values()):
            pod.process.kill()
            pod.process.wait()
        for thread in list(self._threads):
            thread.join()
        self._api.close()

    def add_node(
        self,
        name: str,
        *,
        network: int | None = None,
        zone: str = "eu-1-a",
        cpu: str = "4",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Register a node that is Ready; `labels` are added to the usual ones.

        Without a `network` it is a free one from 100 to 250.
        """
        with self._lock:
            taken = {node.network for node in self._nodes.values()}
            number = network or next(each for each in range(100, 251) if each not in taken)
            made = node_object(name, number, zone, cpu, labels or {})
            status = made.pop("status")
            answer = self._api.post("/api/v1/nodes", json=made).raise_for_status()
            self._nodes[name] = _Node(network=number, uid=answer.json()["metadata"]["uid"])
        self._api.patch(f"/api/v1/nodes/{name}/status", json={"status": status}, headers=STRATEGIC).raise_for_status()
        self._api.post(_LEASES, json=lease(name))
        # The node controller's own taint goes when it has seen the status.
        wait_until(lambda: not self._is_tainted_as_new(name), seconds=120)

    def delete_node(self, name: str) -> None:
        """Delete the node and, as the garbage collection of pods would, its pods."""
        with self._lock:
            self._nodes.pop(name, None)
        self._api.delete(f"/api/v1/nodes/{name}")
        self._api.delete(f"{_LEASES}/{name}")
        on_it = {"fieldSelector": f"spec.nodeName={name}"}
        for pod in self._api.get("/api/v1/pods", params=on_it).raise_for_status().json()["items"]:
            self._delete_pod(pod)

    @contextmanager
    def nodes(self, *names: str) -> Iterator[None]:
        """These nodes until the end of the block; the number in a name, as in `worker-17`, is its network."""
        try:
            for name in names:
                digits = name.rpartition("-")[2]
                self.add_node(name, network=int(digits) if digits.isdecimal() and 1 < int(digits) < 100 else None)
            yield
        finally:
            for name in names:
                self.delete_node(name)

    def node(self, name: str) -> Json:
        """The node as the API server has it."""
        body: Json = self._api.get(f"/api/v1/nodes/{name}").raise_for_status().json()
        return body

    def pods_on(self, name: str) -> list[str]:
        """The names of the pods that are bound to the node and have not ended."""
        on_it = {"fieldSelector": f"spec.nodeName={name},status.phase!=Succeeded,status.phase!=Failed"}
        pods = self._api.get("/api/v1/pods", params=on_it).raise_for_status().json()["items"]
        return sorted(pod["metadata"]["name"] for pod in pods)

    def log(self, pod_uid: str) -> str:
        """What the process of the pod has written; empty before it has been started."""
        file = self.folder / pod_uid / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def _is_tainted_as_new(self, name: str) -> bool:
        taints = self.node(name)["spec"].get("taints") or []
        return any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="kubelets", daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _send_heartbeats(self) -> None:
        with self.cluster.api() as api:
            while not self._stop.wait(_HEARTBEAT):
                for name in list(self._nodes):
                    with suppress(httpx.HTTPError):
                        renewed = {"spec": {"renewTime": now(micro=True)}}
                        api.patch(f"{_LEASES}/{name}", json=renewed, headers=STRATEGIC)
                        # Once the node controller has written Unknown, the lease alone does not make it Ready.
                        status = {"status": {"conditions": ready_conditions()}}
                        api.patch(f"/api/v1/nodes/{name}/status", json=status, headers=STRATEGIC)

    def _watch_pods(self) -> None:
        with self.cluster.api() as api:
            for kind, pod in watch(api, "/api/v1/pods", self._stop):
                self._on_pod(kind, pod)

    def _on_pod(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            if (running := self._pods.get(uid)) is not None and not running.deleted:
                running.deleted = True
                self._run(self._end, pod, running, kind == "DELETED")
            elif running is None and pod["spec"].get("nodeName") in self._nodes and uid not in self._seen:
                self._run(self._delete_pod, pod)
        elif (
            pod["spec"].get("nodeName") in self._nodes and uid not in self._seen and pod["status"]["phase"] == "Pending"
        ):
            self._seen.add(uid)
            self._run(self._start_logged, pod)

    def _start_logged(self, pod: Json) -> None:
        try:
            self._start(pod)
        except Exception as error:  # The pod fails, not the kubelets.
            self._put_status(pod, phase="Failed", reason="CannotStart", message=repr(error))

    def _start(self, pod: Json) -> None:
        meta, container = pod["metadata"], pod["spec"]["containers"][0]
        node_name = pod["spec"]["nodeName"]
        with self._lock:
            node = self._nodes[node_name]
            node.pods += 1
            host, address = f"127.0.{node.network}.1", f"127.0.{node.network}.{node.pods}"
        home = self.folder / meta["uid"]
        home.mkdir()
        mounts = self._mount(pod, home)
        environment = self._environment(pod, mounts, {"status.podIP": address, "status.hostIP": host})
        words = [_localised(word, mounts) for word in (*container.get("command", ()), *container.get("args", ()))]
        image = self.images.get(container["image"], _as_given)
        command = image(Container(words=words, environment=environment, address=address))
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        running = self._pods[meta["uid"]] = _Pod(process)
        self._put_status(
            pod,
            phase="Running",
            podIP=address,
            podIPs=[{"ip": address}],
            hostIP=host,
            hostIPs=[{"ip": host}],
            startTime=now(),
            conditions=[{"type": each, "status": "True"} for each in ("Initialized", "Ready", "ContainersReady")],
            containerStatuses=[_container_status(container, {"running": {"startedAt": now()}}, ready=True)],
        )
        self._run(self._reap, pod, running)
        self._run(self._name_services, pod, address)

    def _environment(self, pod: Json, mounts: Mapping[str, Path], addresses: Mapping[str, str]) -> dict[str, str]:
        meta, spec = pod["metadata"], pod["spec"]
        fields = {
            **addresses,
            "metadata.name": meta["name"],
            "metadata.namespace": meta["namespace"],
            "metadata.uid": meta["uid"],
            "spec.nodeName": spec["nodeName"],
            "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        }
        given = {}
        for variable in spec["containers"][0].get("env", ()):
            source = variable.get("valueFrom") or {}
            if "secretKeyRef" in source:
                given[variable["name"]] = self._secret(meta["namespace"], source["secretKeyRef"])
            elif path := (source.get("fieldRef") or {}).get("fieldPath"):
                given[variable["name"]] = fields.get(path, "")
            else:
                given[variable["name"]] = _localised(variable.get("value", ""), mounts)
        host, _, port = self.cluster.url.removeprefix("https://").partition(":")
        api_server = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBECONFIG": os.devnull}
        return {**os.environ, **api_server, "NODE_NAME": spec["nodeName"], **self.environment, **given}

    def _secret(self, namespace: str, reference: Json) -> str:
        found = self._api.get(f"/api/v1/namespaces/{namespace}/secrets/{reference['name']}").raise_for_status().json()
        return base64.b64decode(found["data"][reference["key"]]).decode()

    def _mount(self, pod: Json, home: Path) -> dict[str, Path]:
        """The contents of config maps, secrets and the ServiceAccount as folders: mount path to folder.

        Mount paths in words, variables and mounted files are replaced by these folders, as processes share /.
        """
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        mounts = {}
        for mount in pod["spec"]["containers"][0].get("volumeMounts", ()):
            folder = home / "volumes" / mount["name"]
            contents = self._contents(pod, volumes[mount["name"]])
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in contents.items():
                (folder / name).write_text(data)
            mounts[mount["mountPath"]] = folder
        for folder in mounts.values():
            for file in folder.iterdir():
                file.write_text(_localised(file.read_text(), mounts))
        return mounts

    def _contents(self, pod: Json, volume: Json) -> dict[str, str]:
        namespace = pod["metadata"]["namespace"]
        if "configMap" in volume:
            found = self._wait_for(f"/api/v1/namespaces/{namespace}/configmaps/{volume['configMap']['name']}")
            return _chosen(volume["configMap"], {**found.get("data", {}), **_decoded(found.get("binaryData"))})
        if "secret" in volume:
            found = self._wait_for(f"/api/v1/namespaces/{namespace}/secrets/{volume['secret']['secretName']}")
            return _chosen(volume["secret"], _decoded(found.get("data")))
        if "projected" in volume:
            account = pod["spec"].get("serviceAccountName", "default")
            token = self.cluster.service_account_token(namespace, account)
            return {"token": token, "ca.crt": self.cluster.ca.read_text(), "namespace": namespace}
        return {}

    def _wait_for(self, path: str) -> Json:
        """Spark makes the config maps of its driver after the pod: a kubelet waits for them."""
        while (answer := self._api.get(path)).status_code == 404 and not self._stop.wait(0.2):
            pass
        body: Json = answer.raise_for_status().json()
        return body

    def _name_services(self, pod: Json, address: str) -> None:
        """Write the names of the headless services of this pod to `hosts`; Spark makes its driver's after the pod."""
        meta = pod["metadata"]
        for _ in range(50):
            with suppress(httpx.HTTPError):
                answer = self._api.get(f"/api/v1/namespaces/{meta['namespace']}/services").raise_for_status()
                names = [each["metadata"]["name"] for each in answer.json()["items"] if _selects(each, meta)]
                if names:
                    with self._lock, self.hosts.open("a") as hosts:
                        hosts.writelines(f"{address} {name}.{meta['namespace']}.svc\n" for name in names)
                    return
            if self._stop.wait(0.2):
                return

    def _reap(self, pod: Json, running: _Pod) -> None:
        code = running.process.wait()
        if not (self._stop.is_set() or running.deleted):
            self._put_ended(pod, code)

    def _end(self, pod: Json, running: _Pod, gone: bool) -> None:
        """Stop the process of a deleted pod: SIGTERM, after its grace period SIGKILL; then remove the pod."""
        running.process.terminate()
        try:
            running.process.wait(0 if gone else pod["metadata"].get("deletionGracePeriodSeconds", 30))
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()
        if not gone:
            self._put_ended(pod, running.process.returncode)
            self._delete_pod(pod)

    def _delete_pod(self, pod: Json) -> None:
        meta = pod["metadata"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        with suppress(httpx.HTTPError):
            self._api.request("DELETE", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", json=body)

    def _put_ended(self, pod: Json, code: int) -> None:
        exit_code = code if code >= 0 else 128 - code
        ended = {"exitCode": exit_code, "reason": "Error" if code else "Completed", "finishedAt": now()}
        status = _container_status(pod["spec"]["containers"][0], {"terminated": ended}, ready=False)
        self._put_status(pod, phase="Failed" if code else "Succeeded", containerStatuses=[status])

    def _put_status(self, pod: Json, **status: object) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        for _ in range(20):
            with suppress(httpx.HTTPError):
                if self._api.patch(path, json={"status": status}, headers=STRATEGIC).status_code < 500:
                    return
            if self._stop.wait(0.5):  # The API server is being restarted.
                return


def running_kubelets(cluster: Cluster) -> Kubelets:
    """The kubelets of a cluster without nodes, as a context manager."""
    return Kubelets(cluster)


def _as_given(container: Container) -> Sequence[str]:
    return container.words


def _localised(text: str, mounts: Mapping[str, Path]) -> str:
    for inside, outside in mounts.items():
        text = text.replace(inside, str(outside))
    return text


def _decoded(data: Mapping[str, str] | None) -> dict[str, str]:
    return {key: base64.b64decode(value).decode() for key, value in (data or {}).items()}


def _chosen(source: Json, data: Mapping[str, str]) -> dict[str, str]:
    if not (items := source.get("items")):
        return dict(data)
    return {item["path"]: data[item["key"]] for item in items}


def _selects(service: Json, meta: Json) -> bool:
    selector = service["spec"].get("selector") or {}
    return bool(selector) and selector.items() <= meta.get("labels", {}).items()


def _container_status(container: Json, state: Json, *, ready: bool) -> Json:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "local",
        "ready": ready,
        "restartCount": 0,
        "state": state,
    }
