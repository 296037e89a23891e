"""A Spark application on Kubernetes, started by spark-submit, to which a test sends rounds of tasks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from demo.java_home import java_home
from tests.applications.application import JAR, LOGGING, PLUGIN, TASK_START, EndedError, Round
from tests.applications.compiling import compile_applications
from tests.class_archive import archive_option
from tests.integration.process import wait_until
from tests.kubernetes.cluster import Cluster, Json
from tests.kubernetes.kubelets import Container, Kubelets

TASKS: Final = 12
START_SECONDS: Final = 400
ROUND_SECONDS: Final = 400
END_SECONDS: Final = 180
ROLE: Final[tuple[Json, ...]] = (
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["create", "get", "list", "watch", "patch", "delete", "deletecollection"],
    },
    {
        "apiGroups": [""],
        "resources": ["configmaps", "services", "persistentvolumeclaims"],
        "verbs": ["create", "get", "list", "patch", "delete", "deletecollection"],
    },
    {
        "apiGroups": ["networking.k8s.io"],
        "resources": ["networkpolicies"],
        "verbs": ["create", "get", "list", "patch", "delete"],
    },
)
"""What docs/kubernetes-spark.md (Permissions) gives Spark's drivers: nothing of it is for the agent alone."""
_FAST: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_RESULT: Final = re.compile(r"ROUND (\d+)(.*)\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spark:
    """A Spark installation, and the application compiled for it."""

    home: Path
    jar: Path

    @classmethod
    def prepare(cls, home: Path) -> Self:
        """Compile the application by the compiler that Spark ships."""
        return cls(home=home, jar=compile_applications(home))

    def image(self, hosts: Path) -> Image:
        return Image(self, hosts)


@dataclass(frozen=True, slots=True)
class Image:
    """Stands in for Spark's image: its entry point's words `driver` and `executor` become commands.

    `hosts` is a file as /etc/hosts.
    """

    spark: Spark
    hosts: Path

    def __call__(self, container: Container) -> Sequence[str]:
        # Spark's own scripts set SPARK_HOME; its jars are on this machine.
        own = {
            "SPARK_HOME": self.spark.home,
            "JAVA_HOME": java_home(),
            "SPARK_LOCAL_IP": container.address,
            "JAVA_TOOL_OPTIONS": f"-Djdk.net.hosts.file={self.hosts}",
        }
        word, *rest = container.words
        command = (
            self._driver(rest, container) if word == "driver" else self._executor(container.environment, container)
        )
        return ["env", *(f"{name}={value}" for name, value in own.items()), *command]

    def _driver(self, words: Sequence[str], container: Container) -> Sequence[str]:
        bind = ("--conf", f"spark.driver.bindAddress={container.address}")
        return [f"{self.spark.home}/bin/spark-submit", *bind, "--deploy-mode", "client", *words]

    def _executor(self, env: Mapping[str, str], container: Container) -> Sequence[str]:
        options = [env[name] for name in sorted(env) if name.startswith("SPARK_JAVA_OPT_")]
        backend = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
        arguments = {
            "driver-url": env["SPARK_DRIVER_URL"],
            "executor-id": env["SPARK_EXECUTOR_ID"],
            "cores": env["SPARK_EXECUTOR_CORES"],
            "app-id": env["SPARK_APPLICATION_ID"],
            "hostname": container.address,
            "resourceProfileId": env["SPARK_RESOURCE_PROFILE_ID"],
            "podName": env["SPARK_EXECUTOR_POD_NAME"],
        }
        memory = f"-Xmx{env['SPARK_EXECUTOR_MEMORY']}"
        java = [
            f"{java_home()}/bin/java",
            *options,
            *_FAST.split(),
            *archive_option(self.spark.home).split(),
            memory,
            "-cp",
            f"{self.spark.home}/jars/*",
            backend,
        ]
        return [*java, *(word for name, value in arguments.items() for word in (f"--{name}", value))]


class Application:
    """A running application, in client or in cluster mode.

    `pool` is the value of the nodes' label `pool` that its pods select. `token` is that of the ServiceAccount `spark`.
    In cluster mode the driver's image may be another one, with the Spark at `driver_home`.
    """

    def __init__(
        self,
        spark: Spark,
        kubelets: Kubelets,
        folder: Path,
        *,
        namespace: str,
        token: str,
        pool: str,
        cluster_mode: bool,
        conf: Mapping[str, object],
        driver_home: Path | None = None,
    ) -> None:
        self.folder, self.namespace = folder, namespace
        self._spark, self._kubelets, self._cluster_mode = spark, kubelets, cluster_mode
        self._results, self._commands = folder / "results", folder / "commands"
        self._received = 0
        self.image = f"spark-{namespace}-{folder.name}"
        driver_image = f"{self.image}-driver"
        kubelets.images[self.image] = spark.image(kubelets.hosts)
        kubelets.images[driver_image] = replace(spark, home=driver_home or spark.home).image(kubelets.hosts)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log4j2.properties").write_text(LOGGING)
        lines = {
            **_defaults(kubelets.cluster, folder, namespace, self.image, pool),
            "spark.kubernetes.driver.container.image": driver_image,
            **(_cluster_mode if cluster_mode else _client_mode)(kubelets.cluster, token),
            **conf,
        }
        if lines.get("spark.driver.extraClassPath") == JAR:
            archive = archive_option(spark.home, first=JAR)
            lines["spark.driver.extraJavaOptions"] = f"{lines['spark.driver.extraJavaOptions']} {archive}"
        text = "".join(f"{name} {value}\n" for name, value in lines.items() if value is not None)
        (folder / "spark-defaults.conf").write_text(text)
        os.mkfifo(self._commands)

    def __enter__(self) -> Self:
        # Open in both directions: neither side waits for the other, and no reader sees an end before `end`.
        self._pipe = os.open(self._commands, os.O_RDWR)
        mode = "cluster" if self._cluster_mode else "client"
        # Not in SPARK_CONF_DIR: with files in its class path, Java uses no class archive.
        properties = ["--properties-file", str(self.folder / "spark-defaults.conf")]
        submit = [f"{self._spark.home}/bin/spark-submit", *properties, "--deploy-mode", mode, "--class", "Rounds"]
        jar = f"local://{self._spark.jar}"
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"} | {
            "SPARK_CONF_DIR": str(self.folder / "none"),
            "JAVA_HOME": str(java_home()),
            "KUBECONFIG": os.devnull,
            "HOME": str(self.folder),
        }
        with (self.folder / "submit.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*submit, jar, str(self._commands), str(self._results)],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        if error is not None:
            error.add_note(f"The application's log in {self.folder}, without tasks:\n{self.log_without_tasks()}")
        with self._kubelets.cluster.api() as api:
            api.delete(f"/api/v1/namespaces/{self.namespace}/pods")

    @property
    def pid(self) -> int:
        """Process id: in client mode the driver's, as Spark's scripts replace themselves by their command."""
        return self._process.pid

    def round(self, tasks: int = TASKS, *, waiting_on: str = "-") -> Round:
        """Run tasks and return their number and the nodes on which they ran."""
        self.begin_round(tasks, waiting_on=waiting_on)
        return self.result()

    def begin_round(self, tasks: int = TASKS, *, waiting_on: str = "-") -> None:
        """Begin a round whose tasks on a node take ten minutes."""
        os.write(self._pipe, f"{waiting_on} {tasks}\n".encode())

    def result(self) -> Round:
        """Wait for the result of what was sent last. Raises EndedError if the application ends before."""
        wait_until(self._has_result, seconds=ROUND_SECONDS)
        self._received += 1
        number, nodes = self._found()[self._received - 1]
        return Round(number=int(number), hosts=frozenset(nodes.split()))

    def await_use(self, *nodes: str) -> None:
        """Run rounds until tasks have run on each of the nodes."""
        used: set[str] = set()
        deadline = time.monotonic() + START_SECONDS
        while not used.issuperset(nodes):
            assert time.monotonic() < deadline, f"tasks ran on {used} only"
            used |= self.round().hosts

    def starts(self) -> list[tuple[int, str]]:
        """The start of each task: Unix time in ms and the address of the pod, as logged by Spark's scheduler."""
        return [(int(at), address) for at, address in TASK_START.findall(self.log())]

    def starts_on(self, network: str) -> list[int]:
        """The Unix times in ms at which tasks were started in a network, such as `127.0.100.`."""
        return [at for at, address in self.starts() if address.startswith(network)]

    def drivers(self) -> list[Json]:
        """The pod of its driver, in cluster mode."""
        return self._pods("driver")

    def executors(self) -> list[Json]:
        """The pods of its executors that are not to end, by name."""
        return [pod for pod in self._pods("executor") if "deletionTimestamp" not in pod["metadata"]]

    def nodes(self) -> list[str]:
        """The nodes of its running executors, sorted, with repetitions."""
        return sorted(pod["spec"]["nodeName"] for pod in self.executors() if pod["status"]["phase"] == "Running")

    def pending(self) -> list[Json]:
        """Its executors' pods that have no node."""
        return [pod for pod in self.executors() if "nodeName" not in pod["spec"]]

    def end(self) -> None:
        """Let the application end by itself; its exit code must be 0."""
        os.close(self._pipe)
        self._pipe = -1
        assert self._process.wait(END_SECONDS) == 0, self.log_without_tasks()
        if self._cluster_mode:
            wait_until(lambda: self._driver_phase() in {"Succeeded", "Failed"}, seconds=END_SECONDS)
            assert self._driver_phase() == "Succeeded", self.log_without_tasks()

    def log(self) -> str:
        """What the driver has logged so far."""
        log = (self.folder / "submit.log").read_text(errors="replace")
        for pod in self._pods("driver") if self._cluster_mode else ():
            log += self._kubelets.log(pod["metadata"]["uid"])
        return log

    def log_without_tasks(self) -> str:
        """The end of the log for a reader: without lines of tasks."""
        return "\n".join([line for line in self.log().splitlines() if " INFO TaskSetManager: " not in line][-80:])

    def _pods(self, role: str) -> list[Json]:
        with self._kubelets.cluster.api() as api:
            path = f"/api/v1/namespaces/{self.namespace}/pods"
            found = api.get(path, params={"labelSelector": f"spark-role={role}"}).raise_for_status().json()["items"]
        return [pod for pod in found if pod["spec"]["containers"][0]["image"].removesuffix("-driver") == self.image]

    def _driver_phase(self) -> str:
        return next((str(pod["status"]["phase"]) for pod in self._pods("driver")), "")

    def _has_result(self) -> bool:
        if len(self._found()) > self._received:
            return True
        ended = self._process.poll() is not None and not self._cluster_mode
        if ended or (self._cluster_mode and self._driver_phase() in {"Succeeded", "Failed"}):
            raise EndedError(self.log_without_tasks())
        return False

    def _found(self) -> list[tuple[str, str]]:
        return _RESULT.findall(self._results.read_text() if self._results.exists() else "")


def obeying(url: str, **settings: object) -> dict[str, object]:
    """The lines of docs/kubernetes-spark.md with which an application obeys, and nothing else. None removes one."""
    return {
        "spark.driver.extraClassPath": JAR,
        "spark.plugins.defaultList": PLUGIN,
        "spark.blocklist.url": url,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }


def template(folder: Path, pod: Json) -> Path:
    """Write a user's template of pods; JSON is YAML."""
    file = folder / "template.yaml"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **pod}))
    return file


def _defaults(cluster: Cluster, folder: Path, namespace: str, image: str, pool: str) -> dict[str, object]:
    """Small executors with a core each, without user interface."""
    options = f"{_FAST} -Dlog4j2.configurationFile=file:{folder / 'log4j2.properties'}"
    return {
        "spark.master": f"k8s://{cluster.url}",
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.executor.node.selector.pool": pool,
        "spark.kubernetes.allocation.batch.delay": "500ms",
        "spark.kubernetes.executor.deleteOnTermination": "true",
        "spark.executor.instances": 3,
        "spark.executor.cores": 1,
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": options,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": folder / "warehouse",
        # Real seconds of waiting only: no resource is ever registered late on purpose.
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    }


def _client_mode(cluster: Cluster, token: str) -> dict[str, object]:
    return {
        "spark.kubernetes.authenticate.caCertFile": cluster.ca,
        "spark.kubernetes.authenticate.oauthToken": token,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def _cluster_mode(cluster: Cluster, token: str) -> dict[str, object]:
    """The pods have no DNS; what a pod mounts is not at its usual place."""
    mounted = "/var/run/secrets/kubernetes.io/serviceaccount"
    return {
        "spark.kubernetes.authenticate.submission.caCertFile": cluster.ca,
        "spark.kubernetes.authenticate.submission.oauthToken": token,
        "spark.kubernetes.authenticate.driver.serviceAccountName": "spark",
        "spark.kubernetes.executor.useDriverPodIP": "true",
        "spark.kubernetes.driver.master": cluster.url,
        "spark.kubernetes.authenticate.driver.mounted.caCertFile": f"{mounted}/ca.crt",
        "spark.kubernetes.authenticate.driver.mounted.oauthTokenFile": f"{mounted}/token",
        "spark.kubernetes.submission.waitAppCompletion": "false",
    }
