"""A Flink cluster on loopback addresses: one JobManager, and TaskManagers tm-1 to tm-3 on nodes of their own."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import httpx

from tests.integration.process import NO_TLS, free_port, wait_until

JOB_MANAGER_HOST: Final = "127.0.0.30"
NODES: Final = ("127.0.0.31", "127.0.0.32", "127.0.0.33")
CHECK_SECONDS: Final = 8
"""Flink looks for ended blocks this often. Above the start of a JobMaster (FLINK-37607); low, to see ends soon."""
SPECULATION: Final = {
    "execution.batch.speculative.enabled": "true",
    # Blocks are obeyed, but Flink itself speculates and blocks nothing.
    "slow-task-detector.execution-time.baseline-lower-bound": "10000 d",
    "execution.batch.speculative.block-slow-node-duration": "0 s",
    "slow-task-detector.check-interval": f"{CHECK_SECONDS} s",
}
_PACKAGES: Final = (
    "java.base/java.lang java.base/java.net java.base/java.io java.base/java.nio java.base/sun.nio.ch"
    " java.base/java.text java.base/java.lang.reflect java.base/java.time java.base/java.util"
    " java.base/java.util.concurrent java.base/java.util.concurrent.atomic java.base/java.util.concurrent.locks"
    " java.base/sun.net.util"
)
JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _PACKAGES.split()),
)
_LOG_CONFIG: Final = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} %m%n
"""
_JOB_MANAGER: Final = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER: Final = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"


class FlinkCluster:
    """Processes whose logs and data are in `folder`. `settings` replace or add to the configuration."""

    def __init__(
        self,
        java: Path,
        lib: Path,
        folder: Path,
        settings: Mapping[str, str] = SPECULATION,
        *,
        host: str = JOB_MANAGER_HOST,
    ) -> None:
        self.lib, self.folder, self.java = lib, folder, java
        self.conf_dir = folder / "conf"
        self.checkpoints = folder / "checkpoints"
        self.host = host
        self.settings = {**_settings(folder, host, free_port(), free_port()), **settings}
        self.url = f"http://{host}:{self.settings['rest.port']}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._jars: dict[Path, str] = {}
        self._write_conf()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, task_managers: int = 3) -> Self:
        """Start all processes, and return once the TaskManagers are registered."""
        self.start_job_manager()
        for number in range(1, task_managers + 1):
            self.start_task_manager(number)
        self.wait_registered(task_managers)
        return self

    def start_job_manager(self) -> None:
        memory = ("-Xmx320m", "-XX:MaxMetaspaceSize=256m")
        self._start("jm", memory, _JOB_MANAGER, "--configDir", str(self.conf_dir))

    def start_task_manager(self, number: int) -> None:
        node = NODES[number - 1]
        own = {"taskmanager.host": node, "taskmanager.bind-host": node, "taskmanager.resource-id": f"tm-{number}"}
        options = [part for key, value in own.items() for part in ("-D", f"{key}={value}")]
        memory = ("-Xmx192m", "-XX:MaxMetaspaceSize=128m", "-XX:MaxDirectMemorySize=176m")
        self._start(f"tm-{number}", memory, _TASK_MANAGER, "--configDir", str(self.conf_dir), *options)

    def wait_registered(self, task_managers: int) -> None:
        """Wait until that many TaskManagers are registered at the JobManager."""
        wait_until(lambda: self._restarted() and len(self.task_managers()) == task_managers, seconds=600)

    def _restarted(self) -> bool:
        """Start again what has ended by itself: Flink gives up if its RPC does not start within 10 s. Always true."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                self._launch(name)
        return True

    def kill(self, name: str) -> None:
        """Kill `jm` or a TaskManager, `tm-1`, with SIGKILL."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(60)

    def stop(self) -> None:
        """Stop all processes."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)
        self._processes.clear()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def get(self, path: str) -> Any:
        """The JSON that the REST API answers; an empty object while it is not there."""
        with suppress(httpx.TransportError):
            answer = httpx.get(self.url + path, timeout=30, trust_env=False, verify=NO_TLS)
            if answer.status_code == 200:
                return answer.json()
        return {}

    def task_managers(self) -> dict[str, bool]:
        """TaskManager id to whether Flink says that it is blocked."""
        found = self.get("/taskmanagers").get("taskmanagers", [])
        return {it["id"]: bool(it.get("blocked")) for it in found}

    def submit(self, jar: Path, *arguments: object) -> str:
        """Run the job; its id."""
        if jar not in self._jars:
            with jar.open("rb") as file:
                answer = httpx.post(f"{self.url}/jars/upload", files={"jarfile": file}, timeout=60, trust_env=False)
            self._jars[jar] = str(answer.json()["filename"]).rpartition("/")[2]
        body = {"entryClass": "CountJob", "programArgsList": [str(argument) for argument in arguments]}
        url = f"{self.url}/jars/{self._jars[jar]}/run"
        answer = httpx.post(url, json=body, timeout=120, trust_env=False)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["jobid"])

    def state(self, job: str) -> str:
        return str(self.get(f"/jobs/{job}").get("state", "UNKNOWN"))

    def tasks(self, job: str) -> list[tuple[str, str]]:
        """State and TaskManager of each task. REST shows them up to a few seconds late."""
        found = []
        for vertex in self.get(f"/jobs/{job}").get("vertices", []):
            for task in self.get(f"/jobs/{job}/vertices/{vertex['id']}").get("subtasks", []):
                found += [(str(task["status"]), str(task.get("taskmanager-id")))]
        return found

    def cancel(self, job: str) -> None:
        """Cancel it if it runs, and wait for its end."""
        with suppress(httpx.TransportError):
            httpx.patch(f"{self.url}/jobs/{job}?mode=cancel", timeout=30, trust_env=False)
        wait_until(lambda: self.state(job) in {"CANCELED", "FINISHED", "FAILED", "UNKNOWN"}, seconds=120)

    def finish(self, job: str) -> None:
        """Let a streaming job write all that it has read, and end."""
        body = {"drain": False, "targetDirectory": f"file://{self.folder}/savepoints"}
        httpx.post(f"{self.url}/jobs/{job}/stop", json=body, timeout=60, trust_env=False).raise_for_status()
        wait_until(lambda: self.state(job) == "FINISHED", seconds=300)

    def _start(self, name: str, memory: tuple[str, ...], main: str, *arguments: str) -> None:
        logging = f"-Dlog4j.configurationFile=file:{self.conf_dir}/log4j.properties"
        options = [*JAVA_OPTIONS, *memory, logging]
        self._commands[name] = [str(self.java), *options, "-cp", f"{self.lib}/*", main, *arguments]
        self._launch(name)

    def _launch(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(self._commands[name], stdout=log, stderr=log, cwd=self.folder)

    def _write_conf(self) -> None:
        self.conf_dir.mkdir(parents=True)
        for folder in ("tmp", "web", "checkpoints"):
            (self.folder / folder).mkdir()
        lines = "".join(f"{key}: '{value}'\n" for key, value in sorted(self.settings.items()))
        # 1.20 reads config.yaml too.
        (self.conf_dir / "config.yaml").write_text(lines, encoding="utf-8")
        (self.conf_dir / "log4j.properties").write_text(_LOG_CONFIG, encoding="utf-8")


def internal_tls(java: Path, folder: Path) -> dict[str, str]:
    """One certificate for all processes, which trust only that. Flink 2.3 verifies the addresses in it."""
    store = folder / "internal.keystore"
    key = ("-genkeypair", "-alias", "internal", "-keyalg", "RSA", "-dname", "CN=internal", "-storepass", "secret1")
    names = ",".join(f"ip:{address}" for address in (JOB_MANAGER_HOST, *NODES))
    command = [str(java.with_name("keytool")), *key, "-ext", f"SAN={names}", "-keystore", str(store)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    files = {f"security.ssl.internal.{name}": str(store) for name in ("keystore", "truststore")}
    passwords = ("keystore-password", "key-password", "truststore-password")
    settings = {f"security.ssl.internal.{name}": "secret1" for name in passwords}
    return {"security.ssl.internal.enabled": "true", **files, **settings}


def _settings(folder: Path, host: str, rpc_port: int, rest_port: int) -> dict[str, str]:
    """A small cluster: 2 slots on each node, about 0.9 GB in all."""
    return {
        "jobmanager.rpc.address": host,
        "jobmanager.rpc.port": str(rpc_port),
        "jobmanager.bind-host": host,
        "rest.address": host,
        "rest.bind-address": host,
        "rest.port": str(rest_port),
        "rest.bind-port": str(rest_port),
        "blob.server.port": "0",
        "io.tmp.dirs": str(folder / "tmp"),
        "web.upload.dir": str(folder / "web"),
        "web.refresh-interval": "500",
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "state.checkpoints.dir": f"file://{folder}/checkpoints",
        # A busy machine starts and answers late.
        "pekko.ask.timeout": "60 s",
        "heartbeat.timeout": "120 s",
        "taskmanager.rpc.port": "0",
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.cpu.cores": "2.0",
        "taskmanager.memory.framework.heap.size": "96mb",
        "taskmanager.memory.task.heap.size": "96mb",
        "taskmanager.memory.framework.off-heap.size": "96mb",
        "taskmanager.memory.framework.off-heap.batch-shuffle.size": "48mb",
        "taskmanager.memory.task.off-heap.size": "0mb",
        "taskmanager.memory.network.min": "64mb",
        "taskmanager.memory.network.max": "64mb",
        "taskmanager.memory.managed.size": "32mb",
        "taskmanager.memory.jvm-metaspace.size": "128mb",
        "taskmanager.memory.jvm-overhead.min": "32mb",
        "taskmanager.memory.jvm-overhead.max": "32mb",
        "taskmanager.network.sort-shuffle.min-buffers": "64",
    }
