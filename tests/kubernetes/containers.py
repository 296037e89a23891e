"""Kubelets that run the pods of the service's image as a container runtime does, in mount namespaces.

A container sees a root file system of its own, which is read-only, with its volumes at their places. It has the user
and the group of its pod, only the variables of the pod and of the image, and no capabilities. Init containers run
first, the probes of the pod decide when it is ready, and a container that ends is started again. What differs:
containers share the network, so 0.0.0.0 becomes the pod's address, and `hosts` stands for the DNS. Hooks are not run.
"""

from __future__ import annotations

import compileall
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from tests import debian
from tests.integration.process import ROOT
from tests.kubernetes.cluster import Cluster, Json
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.node_objects import hosts_file, now

_UNPRIVILEGED: Final = "--no-new-privs --bounding-set=-all --inh-caps=-all"
_SYSTEM: Final = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
_PATH: Final = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of the image that the Dockerfile is based on."""
_ETC: Final = ("group", "ld.so.cache", "localtime", "nsswitch.conf", "passwd")
_RESTART_SECONDS: Final = 1.0


def can_run_containers() -> bool:
    """Whether this process may make mount namespaces."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return sys.platform == "linux" and subprocess.run(command, capture_output=True, check=False).returncode == 0


def image_environment() -> dict[str, str]:
    """The variables of the last stage of the Dockerfile."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2])
    words = [word for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE) for word in shlex.split(line)]
    return {name: value.replace("$PATH", _PATH) for name, _, value in (word.partition("=") for word in words)}


def make_image(folder: Path) -> Path:
    """What the Dockerfile copies, in a folder that becomes /srv, with what is compiled already."""
    for name in ("app", "blocklist", "migrations"):
        shutil.copytree(ROOT / name, folder / name)
    compileall.compile_dir(folder, quiet=1)
    return folder


@dataclass(frozen=True, slots=True)
class _Volume:
    source: Path
    read_only: bool


@dataclass(frozen=True, slots=True)
class OtherImage:
    """An image that has this one's files, and more at absolute paths, and further variables."""

    files: Mapping[str, Path]
    environment: Mapping[str, str]


class ContainerKubelets(Kubelets):
    """The kubelets of nodes that run containers. `claims` are the folders of claims, which are `NAMESPACE/NAME`.

    `other_images` are those that are not the service's, by name.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        # Containers have the programs of this machine.
        debian.require({"tini": "tini"})
        self.claims: dict[str, Path] = {}
        self.other_images: dict[str, OtherImage] = {}
        self._root = folder
        super().__init__(cluster, folder_name="containers")
        (folder / "image").mkdir()
        self.image = make_image(folder / "image")
        self.image_environment = image_environment()
        self._running: dict[str, PodRun] = {}
        self._ready: dict[str, PodRun] = {}

    def __exit__(self, *arguments: object) -> None:
        for run in list(self._running.values()):
            run.stop(0)
        super().__exit__(*arguments)

    def _on_pod(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if pod["spec"].get("nodeName") not in self._nodes:
            return
        run = self._running.get(uid)
        if kind == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            if run is not None and not run.stopped.is_set():
                run.stopped.set()
                self._run(self._finish, run, pod, kind == "DELETED")
        elif run is None:
            with self._lock:
                node = self._nodes[pod["spec"]["nodeName"]]
                node.pods += 1
                address = f"127.0.{node.network}.{node.pods}"
            self._running[uid] = PodRun(self, pod, address)
            self._run(self._running[uid].run)

    def _finish(self, run: PodRun, pod: Json, gone: bool) -> None:
        run.stop(0 if gone else pod["metadata"].get("deletionGracePeriodSeconds", 30))
        self.set_ready(run, False)
        if not gone:
            self._put_status(run.pod, phase="Succeeded")
            self._delete_pod(run.pod)

    def runs(self, namespace: str, component: str) -> list[PodRun]:
        """The pods of a component that have not been deleted, the oldest first."""
        labels = {"app.kubernetes.io/component": component}.items()
        return [
            run
            for run in list(self._running.values())
            if run.pod["metadata"]["namespace"] == namespace
            and labels <= run.pod["metadata"].get("labels", {}).items()
            and not run.stopped.is_set()
        ]

    def set_ready(self, run: PodRun, ready: bool) -> None:
        """Give the services of this pod its address, or no longer."""
        with self._lock:
            (self._ready.__setitem__ if ready else lambda uid, _: self._ready.pop(uid, None))(run.uid, run)
            runs = list(self._ready.values())
        lines = []
        for each in runs:
            namespace = each.pod["metadata"]["namespace"]
            found = self._api.get(f"/api/v1/namespaces/{namespace}/services").raise_for_status().json()["items"]
            labels = each.pod["metadata"].get("labels", {}).items()
            names = [it["metadata"]["name"] for it in found if (it["spec"].get("selector") or {}).items() <= labels]
            lines += [f"{each.address} {name}.{namespace}.svc\n" for name in names]
        # The same file, as containers have it mounted.
        self.hosts.write_text(hosts_file() + "".join(lines))

    def put_container_status(self, run: PodRun, *, running: bool, ready: bool) -> None:
        """Report whether the container runs, and whether the pod is ready."""
        container = run.pod["spec"]["containers"][0]
        state = {"running": {"startedAt": now()}} if running else {"waiting": {"reason": "CrashLoopBackOff"}}
        conditions = {"Initialized": running, "Ready": ready, "ContainersReady": ready, "PodScheduled": True}
        self._put_status(
            run.pod,
            phase="Running" if running else "Pending",
            podIP=run.address,
            podIPs=[{"ip": run.address}],
            startTime=now(),
            conditions=[{"type": name, "status": str(holds)} for name, holds in conditions.items()],
            containerStatuses=[
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "local",
                    "ready": ready,
                    "started": running,
                    "restartCount": run.restarts,
                    "state": state,
                }
            ],
        )

    def variables(self, pod: Json, container: Json, address: str) -> dict[str, str]:
        """All variables of the container."""
        namespace = pod["metadata"]["namespace"]
        host, _, port = self.cluster.url.removeprefix("https://").partition(":")
        other = self.other_images.get(container["image"])
        image = self.image_environment if other is None else {**self.image_environment, **other.environment}
        found = {**image, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        if pod["spec"].get("enableServiceLinks", True):
            services = self._api.get(f"/api/v1/namespaces/{namespace}/services").raise_for_status().json()["items"]
            names = [each["metadata"]["name"].upper().replace("-", "_") for each in services]
            found |= {f"{name}_SERVICE_HOST": "10.96.0.7" for name in names}
        for source in container.get("envFrom", ()):
            path = f"/api/v1/namespaces/{namespace}/secrets/{source['secretRef']['name']}"
            found |= self._text_of(path)
        for variable in container.get("env", ()):
            source = variable.get("valueFrom") or {}
            if reference := source.get("secretKeyRef"):
                found[variable["name"]] = self._secret(namespace, reference)
            elif "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == "status.podIP"
                found[variable["name"]] = address
            else:
                found[variable["name"]] = variable.get("value", "")
        return {name: address if value == "0.0.0.0" else value for name, value in found.items()}

    def _text_of(self, path: str) -> dict[str, str]:
        volume = {"secret": {"secretName": path.rpartition("/")[2]}}
        return self._contents({"metadata": {"namespace": path.split("/")[4]}}, volume)

    def volumes(self, pod: Json, home: Path) -> dict[str, Path]:
        """The folders of the pod's volumes, with the owner and the modes that a kubelet gives them."""
        group = pod["spec"]["securityContext"]["fsGroup"]
        found: dict[str, Path] = {}
        for volume in pod["spec"].get("volumes", ()):
            claim = volume.get("persistentVolumeClaim")
            folder = (
                self.claims[f"{pod['metadata']['namespace']}/{claim['claimName']}"]
                if claim
                else home / "volumes" / volume["name"]
            )
            folder.mkdir(parents=True, exist_ok=True)
            source = volume.get("secret") or volume.get("projected") or volume.get("configMap") or {}
            if source:
                mode = source.get("defaultMode", 0o644) | 0o440
                for name, data in self._files(pod, volume).items():
                    (folder / name).write_text(data)
                    os.chown(folder / name, 0, group)
                    # A kubelet writes tokens for their user only.
                    (folder / name).chmod(0o640 if name == "token" and "projected" in volume else mode)
            os.chown(folder, 0, group)
            folder.chmod(0o2775)
            found[volume["name"]] = folder
        return found

    def _files(self, pod: Json, volume: Json) -> dict[str, str]:
        if "projected" not in volume:
            return self._contents(pod, volume)
        found: dict[str, str] = {}
        namespace = pod["metadata"]["namespace"]
        for source in volume["projected"]["sources"]:
            if (token := source.get("serviceAccountToken")) is not None:
                audiences = [token["audience"]] if "audience" in token else []
                account = pod["spec"]["serviceAccountName"]
                text = self.cluster.service_account_token(namespace, account, audiences=audiences)
                found[token["path"]] = text
            elif (reference := source.get("configMap")) is not None:
                found |= self._contents(pod, {"configMap": reference})
            else:
                found |= {item["path"]: namespace for item in source["downwardAPI"]["items"]}
        return found


class PodRun:
    """One pod: its init containers, its container, and the probes of that."""

    def __init__(self, kubelets: ContainerKubelets, pod: Json, address: str) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.address = address
        self.restarts = 0
        self.stopped = threading.Event()
        self._kubelets = kubelets
        self._home = kubelets.folder / f"{pod['metadata']['name']}-{self.uid}"
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        """Run it until it is stopped. A pod that cannot be started is as one that fails."""
        self._home.mkdir()
        try:
            while not self.stopped.is_set():
                if self._run_once():
                    self._probe_until_end()
                self._kubelets.set_ready(self, False)
                if not self.stopped.is_set():
                    self.restarts += 1
                    self._kubelets.put_container_status(self, running=False, ready=False)
                    self.stopped.wait(_RESTART_SECONDS)
        except httpx.HTTPError:
            if not self.stopped.is_set():
                raise
        finally:
            self._ended.set()

    def stop(self, grace: float) -> None:
        """SIGTERM, and SIGKILL after the grace period in seconds."""
        self.stopped.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._ended.wait(30)

    @property
    def exit_code(self) -> int | None:
        """That of the last process, None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    def execute(self, *words: str, stdin: bytes = b"") -> bytes:
        """What a command prints that runs in the container, as `kubectl exec` does; the test fails if it does."""
        assert self._process is not None
        variables = (Path("/proc") / str(self.pid) / "environ").read_bytes().rstrip(b"\0").split(b"\0")
        user = self.pod["spec"]["securityContext"]
        identity = f"--reuid={user['runAsUser']} --regid={user['runAsGroup']} --groups={user['fsGroup']}"
        command = ["nsenter", f"--target={self.pid}", "--mount", "--root", "/usr/bin/setpriv", *identity.split()]
        command += [*_UNPRIVILEGED.split(), "/usr/bin/env", "--ignore-environment", "--chdir=/srv"]
        done = subprocess.run(
            [*map(str.encode, command), *variables, *map(str.encode, words)],
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def log(self) -> str:
        """What its containers have written."""
        return (self._home / "log").read_text(errors="replace")

    def _run_once(self) -> bool:
        """Run the init containers, and start the container; False if one of them failed."""
        spec = self.pod["spec"]
        volumes = self._kubelets.volumes(self.pod, self._home)
        for container in spec.get("initContainers", ()):
            self._process = self._start(container, volumes)
            if self._process.wait() != 0:
                return False
        if self.stopped.is_set():
            return False
        self._process = self._start(spec["containers"][0], volumes)
        if self.stopped.is_set():  # Between the two.
            self._process.terminate()
        return True

    def _start(self, container: Json, volumes: Mapping[str, Path]) -> subprocess.Popen[bytes]:
        variables = self._kubelets.variables(self.pod, container, self.address)
        root = self._home / f"root-{container['name']}"
        root.mkdir(exist_ok=True)
        mounts = {
            mount["mountPath"]: _Volume(volumes[mount["name"]], mount.get("readOnly", False))
            for mount in container["volumeMounts"]
        }
        user = {**self.pod["spec"]["securityContext"], **container["securityContext"]}
        assert user["readOnlyRootFilesystem"], container["name"]
        assert user["runAsNonRoot"], container["name"]
        if other := self._kubelets.other_images.get(container["image"]):
            mounts = {path: _Volume(source, read_only=True) for path, source in other.files.items()} | mounts
        given = [*container["command"], *container.get("args", ())]
        words = [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in given]
        identity = f"--reuid={user['runAsUser']} --regid={user['runAsGroup']} --groups={user['fsGroup']}"
        command = shlex.join([*(f"{name}={value}" for name, value in variables.items()), *words])
        script = _root_script(root, self._kubelets.image, self._kubelets.hosts, mounts) + (
            f"exec chroot {root} /usr/bin/setpriv {identity} {_UNPRIVILEGED}"
            f" /usr/bin/env --ignore-environment --chdir=/srv {command}"
        )
        with (self._home / "log").open("ab") as log:
            return subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _probe_until_end(self) -> None:
        container = self.pod["spec"]["containers"][0]
        assert self._process is not None
        started = "startupProbe" not in container
        was_ready: bool | None = None
        while self._process.poll() is None:
            started = started or self._answers(container["startupProbe"])
            ready = started and ("readinessProbe" not in container or self._answers(container["readinessProbe"]))
            if ready != was_ready and not self.stopped.is_set():
                was_ready = ready
                self._kubelets.put_container_status(self, running=True, ready=ready)
                self._kubelets.set_ready(self, ready)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)

    def _answers(self, probe: Json) -> bool:
        get = probe["httpGet"]
        ports = {it["name"]: it["containerPort"] for it in self.pod["spec"]["containers"][0]["ports"]}
        url = f"{get['scheme'].lower()}://{self.address}:{ports[get['port']]}{get['path']}"
        with suppress(httpx.TransportError):
            # As a kubelet, without verifying the certificate.
            return httpx.get(url, verify=False, trust_env=False, timeout=30).status_code < 400
        return False


def _root_script(root: Path, image: Path, hosts: Path, mounts: Mapping[str, _Volume]) -> str:
    """A shell script that makes the root file system of a container in `root`, in a mount namespace of its own."""
    lines = [f"mount -t tmpfs root {root}", f"cd {root}", "mkdir etc proc dev srv venv"]
    for name in _SYSTEM:
        if Path("/", name).is_symlink():
            lines.append(f"ln -s {Path('/', name).readlink()} {name}")
        elif Path("/", name).is_dir():
            lines += [f"mkdir {name}", f"mount --rbind -o ro /{name} {name}"]
    if not sys.base_prefix.startswith("/usr"):
        lines += _bind(Path(sys.base_prefix), sys.base_prefix, read_only=True)
    lines += [f"cp {Path('/etc', name)} etc/" for name in _ETC if Path("/etc", name).exists()]
    lines += ["mkdir etc/ssl", "mount --bind -o ro /etc/ssl etc/ssl"]
    lines += [
        "touch etc/hosts",
        f"mount --bind {hosts} etc/hosts",
        "mount --rbind /proc proc",
        "mount --rbind /dev dev",
    ]
    lines += _bind(image, "/srv", read_only=True) + _bind(Path(sys.prefix), "/venv", read_only=True)
    for inside, volume in mounts.items():
        lines += _bind(volume.source, inside, read_only=volume.read_only)
    return "\n".join([*lines, f"mount -o remount,ro {root}", ""])


def _bind(source: Path, inside: str, *, read_only: bool) -> list[str]:
    target = inside.lstrip("/")
    lines = [f"mkdir -p {target}", f"mount --bind {source} {target}"]
    return [*lines, f"mount -o remount,ro,bind {target}"] if read_only else lines
