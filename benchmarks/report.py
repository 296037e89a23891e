"""Results: samples as JSON and a chart per group, and one page with all tables and charts."""

import json
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.chart import chart
from benchmarks.groups import GROUPS, LONG
from benchmarks.rows import Row, Target, target_met
from benchmarks.tables import noise_summary, table

RESULTS = Path(__file__).parent / "results"
PAGE = """# Benchmark results

`make bench` writes this folder: samples as JSON, a chart per group, and this page.
[docs/evidence/performance.md](../../docs/evidence/performance.md) explains the rows and what limits them.

| | targets met | missed |
|---|--:|--:|
{summary}

{sections}"""
SECTION = """## {name}

{question}

{table}

Measured {taken} on {processor}, {kernel}.{noise}

![{question}]({name}.svg)
"""
LIBRARIES = ("uvicorn", "uvloop", "httptools", "fastapi", "starlette", "sqlalchemy")
TOOLS = {"nginx": ["-v"], "etcd": ["--version"], "wrk": ["-v"], "h2load": ["--version"], "java": ["--version"],
         "kubectl": ["version", "--client"], "amtool": ["--version"]}  # fmt: skip
QUESTIONS = {**GROUPS, **LONG}


def save(folder: Path, group: str, rows: Sequence[Row]) -> None:
    """Write the group's files, and the page of all groups measured so far."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"group": group, "machine": machine(), "rows": [asdict(row) for row in rows]}
    (folder / f"{group}.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / f"{group}.svg").write_text(chart(rows))
    write_page(folder)


def write_page(folder: Path) -> None:
    """Write tables and charts of all groups that have samples."""
    saved = [json.loads(path.read_text()) for name in QUESTIONS if (path := folder / f"{name}.json").exists()]
    summary = "\n".join(_summary(content) for content in saved)
    sections = "\n".join(_section(content) for content in saved)
    (folder / "README.md").write_text(PAGE.format(summary=summary, sections=sections))


def _rows(content: dict[str, Any]) -> list[Row]:
    return [Row(**{**row, "targets": [Target(**target) for target in row["targets"]]}) for row in content["rows"]]


def _summary(content: dict[str, Any]) -> str:
    verdicts = [target_met(row, target) for row in _rows(content) for target in row.targets]
    name = content["group"]
    return f"| [{name}](#{name}) | {verdicts.count(True)} | {verdicts.count(False)} |"


def _section(content: dict[str, Any]) -> str:
    rows, machine, name = _rows(content), content["machine"], content["group"]
    where = {key: machine[key] for key in ("taken", "processor", "kernel")}
    return SECTION.format(name=name, question=QUESTIONS[name], table=table(rows), noise=noise_summary(rows), **where)


def machine() -> dict[str, object]:
    """Return the machine and the versions that were measured."""
    information = Path("/proc/cpuinfo").read_text()
    processor = next((line.split(":")[1].strip() for line in information.splitlines() if "model name" in line), "?")
    return {
        "taken": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processor": processor,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "tools": {name: _tool_version(name, options) for name, options in TOOLS.items() if shutil.which(name)},
    }


def _tool_version(name: str, options: list[str]) -> str:
    done = subprocess.run([name, *options], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().partition("\n")[0]
