"""A ResourceManager in a JVM of its own, which may be killed, and all NodeManagers in another one, driven through py4j.

Each has an address and a host name of its own; `-Djdk.net.hosts.file` gives the names to each JVM, so that nothing
needs root. A NodeManager is stopped and started by a call: `kill -9` of one of them alone is not possible.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from py4j.java_gateway import GatewayParameters, JavaGateway  # type: ignore[import-untyped]

from blocklist.managers.yarn.resource_manager import kerberos_auth
from tests.integration.process import DIES_WITH_THIS
from tests.yarn.kerberos import REALM, Realm
from tests.yarn.rest import ResourceManagerRest

DOMAIN: Final = "yarn.test"
PORT: Final = 8041
"""Of each NodeManager, unless it is started with another one."""
MEGABYTES: Final = 2560
VCORES: Final = 8
ADMINISTRATOR: Final = "operator"
SECONDS: Final = 180.0
"""Maximum time of each wait."""
_CONF: Final = Path(__file__).with_name("conf")
_YARN: Final = "org.apache.hadoop.yarn"
_EMPTY_EXCLUDE_FILE: Final = '<?xml version="1.0"?>\n<hosts>\n</hosts>\n'


class YarnCluster:
    """`folder` takes all files; `standby` adds a second ResourceManager.

    With a standby, failover is by hand: `activate`. With a `realm`, everything is secured by Kerberos: its principal
    ADMINISTRATOR is the administrator, and this process must be a client of it.
    """

    def __init__(
        self,
        folder: Path,
        classpath: Sequence[str],
        *,
        nodes: int = 3,
        standby: bool = False,
        realm: Realm | None = None,
    ) -> None:
        self.folder = folder
        self.nodes = [f"w{number}.{DOMAIN}" for number in range(1, nodes + 1)]
        self.conf = folder / "conf"
        self.hosts_file = folder / "hosts"
        self.exclude_file = folder / "exclude.xml"
        self._reservation, network = _reserve_network()
        self.resource_managers = {
            name: f"127.{network}.{number}" for name, number in [("rm1", 10), ("rm2", 11)][: 2 if standby else 1]
        }
        self.addresses = {host: f"127.{network}.{20 + number}" for number, host in enumerate(self.nodes, 1)}
        auth = None if realm is None else kerberos_auth()
        self._rest = {
            name: ResourceManagerRest(f"http://{address}:8088", auth)
            for name, address in self.resource_managers.items()
        }
        self._standby = standby
        self._realm = realm
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._managers: dict[str, Any] = {}
        self._gateway: JavaGateway | None = None
        self._write_files()
        self._classpath = os.pathsep.join([str(self.conf), *classpath])

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Addresses.

    @property
    def url(self) -> str:
        """Of the first ResourceManager."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """Of all ResourceManagers."""
        return [f"http://{address}:8088" for address in self.resource_managers.values()]

    @property
    def environment(self) -> dict[str, str]:
        """For a process that uses this YARN: a client of Hadoop, or a Spark driver."""
        conf = {"HADOOP_CONF_DIR": str(self.conf), "YARN_CONF_DIR": str(self.conf)}
        return {**os.environ, **conf, "HADOOP_USER_NAME": "root"}

    def rest(self, name: str = "rm1") -> ResourceManagerRest:
        """The REST API of a ResourceManager."""
        return self._rest[name]

    # The processes.

    def start(self) -> None:
        """Start everything; return when all nodes are RUNNING."""
        for name in self.resource_managers:
            self.start_resource_manager(name)
        self._start_gateway()
        if self._standby:
            self.activate("rm1")
        for host in self.nodes:
            self.start_node(host)
        self.wait_running()

    def start_resource_manager(self, name: str = "rm1") -> None:
        """Start it, and return at once."""
        options = [f"-Dyarn.resourcemanager.ha.id={name}"] if self._standby else []
        self._spawn(name, [*self._jvm(*options), f"{_YARN}.server.resourcemanager.ResourceManager", *options])

    def kill_resource_manager(self, name: str = "rm1") -> None:
        """Kill it with SIGKILL."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def disable_labels(self) -> None:
        """For ResourceManagers that start from now on: no node labels, and none from before a restart."""
        site = self.conf / "yarn-site.xml"
        text = site.read_text()
        for name in ("yarn.node-labels.enabled", "yarn.resourcemanager.recovery.enabled"):
            text = text.replace(f"<name>{name}</name><value>true<", f"<name>{name}</name><value>false<")
        site.write_text(text)

    def set_preemption(self, *, on: bool) -> None:
        """Whether YARN ends containers of a queue that has more than its share when another queue wants its own."""
        scheduler = self.conf / "capacity-scheduler.xml"
        name = "preemption.observe_only</name><value>"
        scheduler.write_text(scheduler.read_text().replace(f"{name}{on}".lower(), f"{name}{not on}".lower()))
        self.rmadmin("-refreshQueues")

    def activate(self, name: str) -> None:
        """Make this ResourceManager the active one, and the other one the standby."""
        self.wait(lambda: self.rest(name).answers())
        for other in self.resource_managers:
            if other != name and self.rest(other).answers():
                self.rmadmin("-transitionToStandby", "--forcemanual", other, asks=True)
        self.rmadmin("-transitionToActive", "--forcemanual", name, asks=True)

    def rmadmin(self, *words: str, asks: bool = False) -> None:
        """`yarn rmadmin`, in the JVM of the NodeManagers: without the start of another one. `asks`: it needs a yes."""
        jvm = self._jvm_view()
        if asks:
            answer = jvm.java.io.ByteArrayInputStream(bytearray(b"y\ny\n"))
            jvm.System.setIn(answer)
        array = self._gateway.new_array(jvm.java.lang.String, len(words))  # type: ignore[union-attr]
        for number, word in enumerate(words):
            array[number] = word
        conf = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
        # Hadoop's client would send over a connection to a ResourceManager that was killed meanwhile.
        conf.setInt("ipc.client.connection.maxidletime", 0)
        code = jvm.org.apache.hadoop.yarn.client.cli.RMAdminCLI(conf).run(array)
        assert code == 0, (words, code)

    def write_yarn_command(self) -> Path:
        """A program that is `yarn` as far as `yarn rmadmin …` goes."""
        path = self.folder / "yarn"
        command = shlex.join([*self._jvm(heap=64), f"{_YARN}.client.cli.RMAdminCLI"])
        path.write_text(f'#!/bin/sh\nshift\nexec {command} "$@"\n')
        path.chmod(0o755)
        return path

    # The nodes.

    def start_node(self, host: str, port: int = PORT) -> None:
        """Start a NodeManager; it registers with the ResourceManager. Port 0 is one of its own choice."""
        jvm = self._jvm_view()
        conf = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
        folder = self.folder / host
        own = {"hostname": host, "bind-host": host, "address": f"{host}:{port}"}
        own |= {"local-dirs": f"{folder}/local", "log-dirs": f"{folder}/logs"}
        for key, value in own.items():
            conf.set(f"yarn.nodemanager.{key}", value)
        manager = jvm.org.apache.hadoop.yarn.server.nodemanager.NodeManager()
        manager.init(conf)
        manager.start()
        self._managers[host] = manager

    def stop_node(self, host: str) -> None:
        """Stop a NodeManager; its containers end with it."""
        self._managers.pop(host).stop()

    def revive_nodes(self) -> None:
        """Start those that are stopped, or have ended because YARN decommissioned or refused them."""
        for host in self.nodes:
            manager = self._managers.get(host)
            if manager is None or str(manager.getServiceState()) != "STARTED":
                self.start_node(host)

    def wait_running(self, names: Sequence[str] | None = None) -> None:
        """Wait until these nodes, all by default, are RUNNING."""
        wanted = set(self.nodes if names is None else names)
        self.wait(lambda: wanted <= {host for host, state in self.states().items() if state == "RUNNING"})

    def states(self) -> Mapping[str, str]:
        """The state of each node at the active ResourceManager; empty if there is none.

        Of several NodeManagers on one host, such as one that came back on another port, RUNNING wins.
        """
        found: dict[str, str] = {}
        for node in self.node_list():
            if found.get(node["nodeHostName"]) != "RUNNING":
                found[node["nodeHostName"]] = node["state"]
        return found

    def node_list(self) -> list[dict[str, Any]]:
        """All nodes in any state, as the active ResourceManager's REST API shows them; empty if there is none."""
        for name in self.resource_managers:
            if (nodes := self.rest(name).nodes()) is not None:
                return nodes
        return []

    def reset(self) -> None:
        """End all applications, remove all labels and entries of the exclude file, and start nodes that ended."""
        rest = self.rest(next(name for name in self.resource_managers if self.rest(name).nodes() is not None))
        rest.kill_applications()
        if self.exclude_file.read_text() != _EMPTY_EXCLUDE_FILE:
            self.exclude_file.write_text(_EMPTY_EXCLUDE_FILE)
            self.rmadmin("-refreshNodes")
        self.revive_nodes()
        self.wait_running()
        for node in rest.nodes() or []:
            if node.get("nodeLabels"):
                rest.set_label(f"{node['nodeHostName']}:0", "")
            total = node["totalResource"]
            if node["state"] == "RUNNING" and (total["memory"], total["vCores"]) != (MEGABYTES, VCORES):
                rest.set_resource(node["id"], MEGABYTES, VCORES, -1)
        rest.remove_labels()
        self.wait(lambda: not any(node["numContainers"] for node in rest.nodes() or []))

    # Everything else.

    def wait(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        """Wait until the condition holds. Fails after `seconds`, or if a process of the cluster ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise AssertionError(f"{name} ended with {process.returncode}: {self._end_of_log(name)}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s; the nodes: {self.states()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the applications, as containers outlive a NodeManager that is killed; then all processes."""
        with contextlib.suppress(OSError, AssertionError, ValueError):
            self._end_containers()
        if self._gateway is not None:
            self._gateway.shutdown()
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            _wait_or_kill(process)
        self._processes.clear()
        for rest in self._rest.values():
            rest.close()
        self._reservation.close()

    def _end_containers(self) -> None:
        for name in self._processes.keys() & self.resource_managers.keys():
            if self.rest(name).nodes() is not None:
                self.rest(name).kill_applications()
        self.wait(lambda: not any(node["numContainers"] for node in self.node_list()), 30)

    def _write_files(self) -> None:
        shutil.copytree(_CONF, self.conf)
        if self._standby:
            managers = {
                "yarn.resourcemanager.ha.enabled": "true",
                "yarn.resourcemanager.ha.automatic-failover.enabled": "false",
                "yarn.resourcemanager.ha.rm-ids": ",".join(self.resource_managers),
                "yarn.resourcemanager.cluster-id": "tests",
                **{f"yarn.resourcemanager.hostname.{name}": it for name, it in self.resource_managers.items()},
            }
        else:
            managers = {"yarn.resourcemanager.hostname": self.resource_managers["rm1"]}
        values = {
            "@RESOURCE_MANAGERS@": _properties(managers),
            "@SECURITY@": self._security(),
            "@EXCLUDE@": str(self.exclude_file),
            "@FOLDER@": str(self.folder),
        }
        for site in (self.conf / "yarn-site.xml", self.conf / "core-site.xml"):
            text = site.read_text()
            for mark, value in values.items():
                text = text.replace(mark, value)
            site.write_text(text)
        lines = ["127.0.0.1 localhost", f"127.0.0.1 {socket.gethostname()}"]
        lines += [f"{address} {name}.{DOMAIN}" for name, address in self.resource_managers.items()]
        lines += [f"{address} {host} {host.partition('.')[0]}" for host, address in self.addresses.items()]
        self.hosts_file.write_text("".join(f"{line}\n" for line in lines))
        self.exclude_file.write_text(_EMPTY_EXCLUDE_FILE)

    def _security(self) -> str:
        """The properties of a secured cluster; none without a realm."""
        if self._realm is None:
            return ""
        web = f"HTTP/{self.resource_managers['rm1']}"
        keytab = str(self._realm.keytab("rm/manager", "nm/nodes", web))
        return _properties(
            {
                "hadoop.security.authentication": "kerberos",
                "hadoop.http.filter.initializers": "org.apache.hadoop.security.AuthenticationFilterInitializer",
                "hadoop.http.authentication.type": "kerberos",
                "hadoop.http.authentication.kerberos.principal": f"{web}@{REALM}",
                "hadoop.http.authentication.kerberos.keytab": keytab,
                "yarn.resourcemanager.principal": f"rm/manager@{REALM}",
                "yarn.resourcemanager.keytab": keytab,
                "yarn.resourcemanager.webapp.spnego-principal": f"{web}@{REALM}",
                "yarn.resourcemanager.webapp.spnego-keytab-file": keytab,
                "yarn.nodemanager.principal": f"nm/nodes@{REALM}",
                "yarn.nodemanager.keytab": keytab,
                "yarn.admin.acl": ADMINISTRATOR,
            }
        )

    def _jvm(self, *options: str, heap: int = 192) -> list[str]:
        return [
            *DIES_WITH_THIS,
            "java",
            f"-Xmx{heap}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            f"-Djdk.net.hosts.file={self.hosts_file}",
            f"-Djava.io.tmpdir={self.folder}",
            *([] if self._realm is None else self._realm.java_options()),
            *options,
            "-cp",
            self._classpath,
        ]

    def _spawn(self, name: str, command: Sequence[str], **streams: int) -> subprocess.Popen[bytes]:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=self.environment,
                stderr=log,
                start_new_session=True,
                **{"stdout": log, **streams},  # type: ignore[call-overload]
            )
        self._processes[name] = process
        return process  # type: ignore[no-any-return]

    def _start_gateway(self) -> None:
        """The JVM of the NodeManagers. It ends with this process, as its standard input does."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [*self._jvm(heap=384), "py4j.GatewayServer", "--die-on-broken-pipe", "0"]
        process = self._spawn("nodes", command, **pipes)
        assert process.stdout is not None
        parameters = GatewayParameters(port=int(process.stdout.readline()), auto_convert=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        jvm = self._jvm_view()
        jvm.org.apache.hadoop.metrics2.lib.DefaultMetricsSystem.setMiniClusterMode(True)
        # A NodeManager that YARN refuses or decommissions ends its JVM, and here all others with it.
        jvm.org.apache.hadoop.util.ExitUtil.disableSystemExit()

    def _jvm_view(self) -> Any:
        assert self._gateway is not None
        return self._gateway.jvm

    def _end_of_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]


def _properties(values: Mapping[str, str]) -> str:
    return "\n".join(
        f"  <property><name>{key}</name><value>{value}</value></property>" for key, value in values.items()
    )


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _reserve_network() -> tuple[socket.socket, str]:
    """Two middle numbers of loopback addresses that no other cluster on this machine uses, while the socket is open."""
    for _ in range(100):
        network = f"{random.randint(64, 127)}.{random.randint(1, 254)}"
        reservation = socket.socket()
        try:
            reservation.bind((f"127.{network}.9", PORT))
        except OSError:
            reservation.close()
        else:
            return reservation, network
    raise AssertionError("no free loopback addresses")
