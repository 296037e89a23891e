"""Event logs of any size, made from a small real one: the tasks of `tests/detection/logs/4.3.0/plain` again and again.

Each application has an id, a start and three hosts of 200 of its own; each of its stages has another number, other
task ids, and tasks whose times are the real ones, moved and stretched by chance (a fixed seed). All else of a line is
as Spark wrote it. There are nearly no other events, so there is less to pass over than in most logs.
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
    """Write logs of about `size` bytes in all, and return how many they are exactly."""
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
    """A function that writes the line with other values in the varied fields."""
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
