"""Runs Debian's Prometheus and Alertmanager on free ports, with an exporter."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx

from tests import debian
from tests.http_server import Handler, serving
from tests.integration.process import NO_TLS, ROOT, free_port, wait_until

PROGRAMS: Final = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
}
DOCS: Final = ROOT / "docs" / "alertmanager"
_RULES: Final = """\
groups:
  - name: disks
    rules:
      - alert: DiskBad
        expr: disk_bad == 1
        labels: {blocklist: evacuate}
        annotations: {summary: "{{ $labels.disk }} is bad, replace it"}
"""
_PROMETHEUS: Final = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{folder}/rules.yml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alertmanager}"]}}]}}]}}
scrape_configs: [{{job_name: disks, static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]}}]
"""


class Monitoring:
    """`bad` are the nodes with a bad disk, as exported; `alertmanager` is the URL of Alertmanager."""

    def __init__(self, nodes: tuple[str, ...], alertmanager: str, amtool: str) -> None:
        self.bad: set[str] = set()
        self.alertmanager = alertmanager
        self._nodes = nodes
        self._amtool = amtool

    def render(self) -> bytes:
        """The exporter's metrics."""
        lines = [f'disk_bad{{node="{node}",disk="/data1"}} {int(node in self.bad)}\n' for node in self._nodes]
        return "".join(lines).encode()

    def silence(self, node: str) -> None:
        """Silence all alerts about a node."""
        where = f"--alertmanager.url={self.alertmanager}"
        command = [self._amtool, where, "silence", "add", f"node={node}", "-d", "2h", "-c", "disk replaced"]
        subprocess.run(command, check=True, capture_output=True)

    def failed(self) -> float:
        """The number of posts that failed."""
        text = httpx.get(f"{self.alertmanager}/metrics", trust_env=False, verify=NO_TLS).text
        name = 'alertmanager_notifications_failed_total{integration="webhook"}'
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


@contextmanager
def monitoring(folder: Path, url: str, *nodes: str, token: str = "not required") -> Iterator[Monitoring]:
    """Posts alerts about bad disks to the service at `url`, with the configuration in docs/."""
    programs = debian.require(PROGRAMS)
    ports = {"alertmanager": free_port(), "prometheus": free_port()}
    running = Monitoring(nodes, f"http://127.0.0.1:{ports['alertmanager']}", programs["amtool"])
    with ExitStack() as stack:
        ports["exporter"] = stack.enter_context(_exporter(running))
        (folder / "rules.yml").write_text(_RULES)
        (folder / "prometheus.yml").write_text(_PROMETHEUS.format(folder=folder, **ports))
        (folder / "token").write_text(f"{token}\n")
        (folder / "alertmanager.yml").write_text(_quick(folder, url))
        for name, options in _options(folder, ports).items():
            stack.enter_context(_running(programs[name], options, folder / f"{name}.log"))
        for name in ("alertmanager", "prometheus"):
            wait_until(lambda port=ports[name]: _ready(port))  # type: ignore[misc]
        yield running


def _quick(folder: Path, url: str) -> str:
    """The configuration in docs/ for this service, with short intervals."""
    text = (DOCS / "alertmanager.yml").read_text()
    changes = {
        "http://127.0.0.1:8224": url,
        "/etc/prometheus/blocklist.token": str(folder / "token"),
        "group_interval: 30s": "group_interval: 1s",
        "repeat_interval: 20m": "repeat_interval: 1s",
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def _options(folder: Path, ports: Mapping[str, int]) -> dict[str, list[str]]:
    return {
        "prometheus-alertmanager": [
            f"--config.file={folder}/alertmanager.yml",
            f"--storage.path={folder}/alertmanager",
            f"--web.listen-address=127.0.0.1:{ports['alertmanager']}",
            "--cluster.listen-address=",
        ],
        "prometheus": [
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/prometheus",
            f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
        ],
    }


@contextmanager
def _running(program: str, options: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen([program, *options], stdout=file, stderr=subprocess.STDOUT)
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(60)


def _ready(port: int) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/-/ready", trust_env=False, verify=NO_TLS).status_code == 200
    return False


@contextmanager
def _exporter(monitoring: Monitoring) -> Iterator[int]:
    """Serve the metrics; yields the port."""

    class Metrics(Handler):
        def do_GET(self) -> None:
            self.reply(200, monitoring.render(), {"Content-Type": "text/plain; version=0.0.4"})

    with serving(Metrics) as url:
        yield int(url.rpartition(":")[2])
