"""Start-up time of the command, compared with similar ones, and the time to show a list."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks import systems
from benchmarks.harness import ROOT, scratch
from benchmarks.rows import Row, Target, at_most
from benchmarks.sampling import rotate

ROUNDS = 20
NODES = 100
OURS, KUBECTL, AMTOOL, PYTHON, CURL = "blocklist", "kubectl", "amtool", "python", "curl"
COMMAND = (sys.executable, "-P", "-m", "blocklist.cli")
UNUSUAL = {"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}
"""Settings of containers that slow an installed command down: pip has compiled its modules."""
BARE = (sys.executable, "-I", "-c", "pass")


def run() -> list[Row]:
    """Measure from the start of the process to its end, in turn with the others."""
    systems.require(KUBECTL, AMTOOL, CURL)
    with scratch() as folder, systems.service(folder / "service") as server:
        systems.block(server, NODES)
        inherited = {name: value for name, value in os.environ.items() if name not in UNUSUAL}
        environment = {**inherited, "PYTHONPATH": str(ROOT), "BLOCKLIST_URL": server.url}
        kubectl = (KUBECTL, "version", "--client")
        version = {
            OURS: (*COMMAND, "--version"),
            KUBECTL: kubectl,
            AMTOOL: (AMTOOL, "--version"),
            PYTHON: BARE,
        }
        help_ = {OURS: (*COMMAND, "--help"), KUBECTL: (KUBECTL, "--help"), AMTOOL: (AMTOOL, "--help")}
        listing = {
            OURS: (*COMMAND, "list"),
            KUBECTL: kubectl,
            AMTOOL: (AMTOOL, "--version"),
            CURL: (CURL, "--silent", f"{server.url}/blocklist?details=true"),
        }
        blocking = {
            OURS: (*COMMAND, "block", "free", "-r", "disk", "--dry-run"),
            KUBECTL: kubectl,
            AMTOOL: (AMTOOL, "--version"),
        }
        completing = {"_BLOCKLIST_COMPLETE": "complete_bash", "COMP_WORDS": "blocklist unblock node", "COMP_CWORD": "2"}
        return [
            _row("--version", version, environment, [at_most(300)]),
            _row("--help", help_, environment, [at_most(160)]),
            _row(f"list of {NODES} nodes", listing, environment, [at_most(160)]),
            _row("block, as a dry run", blocking, environment, [at_most(160)]),
            *(
                _row(words, {OURS: (*COMMAND, *words.split()), KUBECTL: kubectl}, environment, [at_most(160)])
                for words in ("status worker-00000", "config check", "manager --help", "flink --help", "serve --help")
            ),
            _row("TAB: the blocked nodes", {OURS: COMMAND, PYTHON: BARE}, environment | completing, [at_most(160)]),
        ]


def _row(name: str, commands: Mapping[str, Sequence[str]], env: Mapping[str, str], targets: list[Target]) -> Row:
    contenders: dict[str, Callable[[], float]] = {
        name: partial(_run_ms, command, env) for name, command in commands.items()
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    return Row(name=name, unit="ms", ours=OURS, samples=samples, noise=noise, targets=targets)


def _run_ms(command: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the run time in ms; the output goes to a pipe that is read."""
    started = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    took = (time.perf_counter() - started) * 1000
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode(errors='replace')}")
    return took
