"""What the demos of cluster managers share: work that comes and goes, and a line that shows where it runs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from blocklist import BlockAction, BlocklistClient
from demo.cluster import wait_until
from demo.service import ROOT, service
from tests.debian import MissingError

PAUSE: Final = 0.7
"""Seconds between two new pieces of work, and between two lines."""
WORK_SECONDS: Final = 4
Running = Callable[[], Mapping[str, int]]
"""The number of pieces of work on each node."""


def run(module: str, description: str, demo: Callable[[Path, ExitStack, int], None]) -> int:
    """Read the arguments, run the demo in a folder of its own, and return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--seconds", type=int, default=12, help="duration of each of the four parts (default: 12)")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="blocklist-demo-") as folder, ExitStack() as stack:
            demo(Path(folder), stack, options.seconds)
    except MissingError as error:
        print(f"{error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


@contextmanager
def managed(folder: Path, kind: str, *options: str, nodes: int) -> Iterator[tuple[str, BlocklistClient]]:
    """A service and a manager that has found `nodes` usable nodes: its URL, and a client."""
    with service(folder) as url, BlocklistClient(url) as client, _manager(folder, kind, "--url", url, *options):
        wait_until(lambda: any(each.usable_nodes == nodes for each in client.listeners()), 120, "the manager")
        yield url, client


@contextmanager
def _manager(folder: Path, kind: str, *options: str) -> Iterator[None]:
    """`blocklist manager` in a process of its own."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKLIST_")}
    with (folder / "manager.log").open("wb") as log:
        command = [sys.executable, "-m", "blocklist.cli", "manager", kind, *options]
        process = subprocess.Popen(command, cwd=ROOT, env=others, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def steady_work(start: Callable[[int], object]) -> Iterator[None]:
    """Start one piece of work after the other, each with its number, in a thread."""
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.wait(PAUSE):
            number += 1
            start(number)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def block_and_free(
    client: BlocklistClient, nodes: tuple[str, str, str], running: Running, seconds: int, work: str
) -> None:
    """Block the first node, evacuate the second, and free both; `seconds` each."""
    blocked, evacuated, _ = nodes

    def show(title: str) -> None:
        print(f"\n{title}", flush=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            counts = running()
            print("   ".join(f"{node} {'■' * counts.get(node, 0):<8}" for node in nodes), flush=True)
            time.sleep(PAUSE)

    show("All nodes are free.")
    client.block(blocked, "Hot machine")
    show(f"{blocked} is blocked: it gets no new {work}, and those that run may end.")
    client.block(evacuated, "Disk errors", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
    show(f"{evacuated} is evacuated: its {work} are ended.")
    for node in (blocked, evacuated):
        client.unblock(node)
    show("Both are free again.")
