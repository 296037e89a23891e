"""What came out: raw samples as JSON, a table, and a chart for each group."""

import json
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.chart import chart, number
from benchmarks.harness import ROOT, Row, Target

RESULTS = Path(__file__).parent / "results"
DOCUMENT = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HEAD = """| {group} | | median | min | max | ours ÷ theirs (min to max) | target |
|---|---|--:|--:|--:|--:|---|"""
LIBRARIES = ("uvicorn", "uvloop", "httptools", "fastapi", "starlette", "sqlalchemy")
TOOLS = {"nginx": ["-v"], "etcd": ["--version"], "wrk": ["-v"], "h2load": ["--version"], "java": ["--version"],
         "kubectl": ["version", "--client"], "amtool": ["--version"]}  # fmt: skip


def keep(group: str, rows: Sequence[Row]) -> None:
    """Write the group's files, and the tables of all groups measured so far anew."""
    RESULTS.mkdir(exist_ok=True)
    content = {"group": group, "machine": machine(), "rows": [asdict(row) for row in rows]}
    (RESULTS / f"{group}.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / f"{group}.svg").write_text(chart(rows))
    tables = "\n\n".join(_kept_table(path) for path in sorted(RESULTS.glob("*.json")))
    (RESULTS / "README.md").write_text(f"# Measured\n\n`make bench` writes this folder.\n\n{tables}\n")
    if DOCUMENT.exists():
        _publish(tables)


def _publish(tables: str) -> None:
    """Put the tables between their marks in the document."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if rest:
        DOCUMENT.write_text(f"{before}{BEGIN}\n{tables}\n{END}{after}")


def _kept_table(path: Path) -> str:
    content = json.loads(path.read_text())
    rows = [Row(**{**row, "targets": [Target(**target) for target in row["targets"]]}) for row in content["rows"]]
    taken = f"Taken {content['machine']['taken']} on {content['machine']['processor']}, {content['machine']['kernel']}."
    return f"{table(content['group'], rows)}\n\n{taken}"


def table(group: str, rows: Sequence[Row]) -> str:
    """The rows in Markdown: a line for each contender, ours first."""
    lines = [HEAD.format(group=group)]
    for row in rows:
        for contender, values in row.samples.items():
            name = f"**{row.name}**, {row.unit}" if contender == row.ours else ""
            cells = [name, contender, *(number(value) for value in (median(values), min(values), max(values)))]
            lines.append(f"| {' | '.join([*cells, *_verdict(row, contender)])} |")
    return "\n".join(lines)


def _verdict(row: Row, contender: str) -> tuple[str, str]:
    """The ratio and the target against this contender; against none it is the figure itself."""
    ours = contender == row.ours
    peer = None if ours else contender
    target = next((target for target in row.targets if target.peer == peer), None)
    if ours:
        return "", "" if target is None else _judged(target, median(row.samples[row.ours]), row.unit)
    ratios = paired(row, contender)
    shown = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return shown, "" if target is None else _judged(target, median(ratios), "")


def _judged(target: Target, figure: float, unit: str) -> str:
    met = figure >= target.factor if target.at_least else figure <= target.factor
    bound = "≥" if target.at_least else "≤"
    return f"{bound} {target.factor:g} {unit}".rstrip() + (": met" if met else ": **missed**")


def paired(row: Row, contender: str) -> list[float]:
    """Ours by theirs, round by round, so that what disturbed a whole round cancels out."""
    ours, theirs = row.samples[row.ours], row.samples[contender]
    if len(ours) != len(theirs) or min(theirs) <= 0:
        return [median(ours) / median(theirs)]
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def machine() -> dict[str, object]:
    """Where and with what it was measured."""
    information = Path("/proc/cpuinfo").read_text()
    processor = next((line.split(":")[1].strip() for line in information.splitlines() if "model name" in line), "?")
    return {
        "taken": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processor": processor,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "tools": {name: _said(name, options) for name, options in TOOLS.items() if shutil.which(name)},
    }


def _said(name: str, options: list[str]) -> str:
    done = subprocess.run([name, *options], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().partition("\n")[0]
