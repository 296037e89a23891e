"""Makes event logs of any size by repeating the tasks of a small real one, tests/detection/logs/4.3.0/plain.

Each application has its own id, start and three of 200 hosts. Each of its stages has its own number, task ids, and task
times that are shifted and stretched randomly with a fixed seed. All other fields are as Spark wrote them. There are
almost no other events, so there is less to skip than in most logs.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT

SOURCE = ROOT / "tests" / "detection" / "logs" / "4.3.0" / "plain"
HOSTS = 200
APPLICATION = 64_000_000  # bytes of one log
_VARIED = re.compile(rb'"(Stage ID|Task ID|Launch Time|Finish Time|Executor Run Time|Host|Executor ID)":("[^"]*"|\d+)')
_FIRST = 1_790_000_000_000  # Unix ms of the first application's start


def make(folder: Path, size: int) -> int:
    """Write logs of about `size` bytes in total; return the exact size."""
    chance, written = random.Random(size), 0
    folder.mkdir(parents=True)
    for number in range(max(1, round(size / APPLICATION))):
        application = folder / f"app-{number:014d}-0000"
        with application.open("wb") as file:
            for line in _application(number, min(size, APPLICATION), chance):
                written += file.write(line)
    return written


def _application(number: int, size: int, chance: random.Random) -> Iterator[bytes]:
    (source,) = SOURCE.iterdir()
    start, application, *lines = source.read_bytes().splitlines(keepends=True)
    tasks = [_template(line) for line in lines if line.startswith(b'{"Event":"SparkListenerTask')]
    hosts = [f"worker-{host:03d}.example.test" for host in chance.sample(range(HOSTS), 3)]
    yield start
    yield application
    done, repeat = 0, 0
    while done < size:
        moved, stretched = _FIRST + number * 3_600_000 + repeat * 2000, chance.lognormvariate(0, 0.3)
        for fill in tasks:
            line = fill(hosts, repeat, moved, stretched)
            done += len(line)
            yield line
        repeat += 1


Fill = Callable[[list[str], int, int, float], bytes]


def _template(line: bytes) -> Fill:
    """Return a function that writes the line with other values in the varied fields."""
    fields = [(name.decode(), json.loads(value)) for name, value in _VARIED.findall(line)]
    pattern = _VARIED.sub(rb'"\1":%b', line.replace(b"%", b"%%"))
    launch = next(value for name, value in fields if name == "Launch Time")

    def fill(hosts: list[str], repeat: int, moved: int, stretched: float) -> bytes:
        values: dict[str, Callable[[Any], str]] = {
            "Stage ID": lambda was: str(was + 2 * repeat),
            "Task ID": lambda was: str(was + 10 * repeat),
            "Launch Time": lambda _: str(moved + launch % 1000),
            "Finish Time": lambda was: str(moved + launch % 1000 + round(max(0, was - launch) * stretched)),
            "Executor Run Time": lambda was: str(round(was * stretched)),
            "Host": lambda was: f'"{hosts[int(was.rpartition(".")[2]) % 3]}"',
            "Executor ID": lambda was: f'"{was}"',
        }
        return pattern % tuple(values[name](was).encode() for name, was in fields)

    return fill
