"""`python -m tests.docs.versions`: write the versions that the tests run with into README.md. `make versions`."""

from __future__ import annotations

import re
import tomllib
from typing import Final

from tests.applications.__main__ import VERSIONS as OTHER_SPARKS
from tests.flink.package import FLINK_1, FLINK_2
from tests.integration.process import ROOT
from tests.kubernetes.control_plane import VERSION as KUBERNETES

README: Final = ROOT / "README.md"
_TABLE: Final = re.compile(r"(?<=<!-- versions -->\n).*?(?=<!-- end -->)", re.DOTALL)


def fill(page: str) -> str:
    """The page with the table of today's tests."""
    workflow, project = _read(".github/workflows/ci.yml"), tomllib.loads(_read("pyproject.toml"))
    oldest = project["project"]["requires-python"].removeprefix(">=")
    (spark,) = project["dependency-groups"]["spark"]
    rows = {
        "Spark": [*OTHER_SPARKS, spark.removeprefix("pyspark==")],
        "Flink": [FLINK_1, FLINK_2],
        "Kubernetes": [KUBERNETES],
        "YARN (Hadoop)": re.findall(r"<hadoop.version>(.*?)<", _read("tests/yarn/pom.xml")),
        "Slurm": ["that of the system's packages"],
        "Python": [oldest, *_matrix(workflow, "python")],
        "PostgreSQL": _matrix(workflow, "version"),
    }
    cells = [f"| {name} | {', '.join(versions)} |\n" for name, versions in rows.items()]
    return _TABLE.sub("".join(["| tested with | versions |\n|---|---|\n", *cells]), page)


def _matrix(workflow: str, name: str) -> list[str]:
    (row,) = re.findall(rf"^ +{name}: \[(.*)\]$", workflow, re.MULTILINE)
    return re.findall(r'"([\d.]+)"', row)


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


if __name__ == "__main__":
    README.write_text(fill(_read("README.md")), encoding="utf-8")
