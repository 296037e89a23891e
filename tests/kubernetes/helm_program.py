"""Helm, and the resource definitions of the Prometheus operator, from Go modules.

Helm takes 3 minutes of CPU the first time on a machine. Its go.mod has Kubernetes' packages in the versions of the
control plane, whose compiled packages it then uses.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.integration.process import ROOT
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.go_program import GoProgram, run_go

CHART: Final = ROOT / "deploy" / "helm"
_VERSION: Final = "4.2.4"
_PROGRAM: Final = GoProgram(
    name="helm",
    version=_VERSION,
    sources=Path(__file__).with_name("helm"),
    files=("go.mod", "go.sum", "main.go"),
)
_OPERATOR: Final = Path(__file__).with_name("prometheus_operator")
_OPERATOR_MODULE: Final = "github.com/prometheus-operator/prometheus-operator"
_DEFINITIONS: Final = ("servicemonitors", "prometheusrules")


def require_helm() -> Path:
    """The path of `helm`, which is built first if it is not there. Raises MissingError without Go."""
    return _PROGRAM.require()


class HelmError(Exception):
    """Helm has failed; the message is its output."""


class Helm:
    """`helm` with a home of its own, as the administrator of a cluster if there is one.

    Without a cluster one process runs all commands: most of what rendering takes is the start of the program.
    """

    def __init__(self, folder: Path, cluster: Cluster | None = None) -> None:
        self._program = require_helm()
        self._environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
        if cluster is not None:
            self._environment["KUBECONFIG"] = str(cluster.admin_kubeconfig)
        self._server: subprocess.Popen[str] | None = None
        if cluster is None:
            command, pipe = [str(self._program), "serve"], subprocess.PIPE
            self._server = subprocess.Popen(command, env=self._environment, stdin=pipe, stdout=pipe, text=True)

    def close(self) -> None:
        """End its process."""
        if self._server is not None:
            self._server.communicate(timeout=300)

    def run(self, *arguments: str) -> str:
        """What it prints on standard output. Raises HelmError."""
        if self._server is not None:
            return _ask(self._server, arguments)
        done = subprocess.run(
            [str(self._program), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            raise HelmError(f"helm {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def render(
        self, *values: str, strings: Iterable[str] = (), namespace: str = "blocklist", name: str = "blocklist"
    ) -> str:
        """The objects with these values (`a.b=c`) as YAML; `strings` are text, whatever they look like.

        Raises HelmError.
        """
        options = [option for value in values for option in ("--set", value)]
        options += [option for value in strings for option in ("--set-string", value)]
        return self.run("template", name, str(CHART), "--namespace", namespace, *options)


def _ask(server: subprocess.Popen[str], arguments: Sequence[str]) -> str:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(arguments) + "\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    if answer["error"]:
        raise HelmError(f"helm {' '.join(arguments)}\n{answer['output']}{answer['error']}")
    return str(answer["output"])


def operator_definitions() -> list[Path]:
    """The files with the resource definitions of ServiceMonitor and PrometheusRule, as the operator publishes them."""
    version = next(
        line.split()[-1] for line in (_OPERATOR / "go.mod").read_text().splitlines() if _OPERATOR_MODULE in line
    )
    found = json.loads(run_go("mod", "download", "-json", f"{_OPERATOR_MODULE}@{version}", folder=_OPERATOR))
    folder = Path(found["Dir"]) / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{name}.yaml" for name in _DEFINITIONS]
