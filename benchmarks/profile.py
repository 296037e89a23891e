"""`make profile`: which files hold the GIL on the hot paths, sampled by py-spy under load.

The holder of the GIL limits a service on one core; waiting and other processes are not counted.
"""

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from benchmarks import systems
from benchmarks.broadcast import broadcast
from benchmarks.connections import put
from benchmarks.generator import wrk, wrk_write
from benchmarks.harness import Server, fetch, prepare, scratch
from benchmarks.report import RESULTS, machine
from benchmarks.sampling import cpu_seconds
from benchmarks.watch import BODY as CHANGE
from benchmarks.watch import WATCHERS
from benchmarks.writes import BODY

SECONDS = 10  # of each path
RATE = 250  # samples per second
MIN_SHARE = 3.0  # percent of a path's samples; files below it on all paths are summed up
LINES = 6  # shown per path

FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^()]*?)(:(?P<line>\d+))?\)")
LOOP = "asyncio/runners.py"
"""The frame of samples without Python below it: uvloop, httptools and the kernel's work for them."""

PAGE = """# Profile of the hot paths

`make profile` writes this page. py-spy samples the holder of the GIL {rate} times per second, {seconds} seconds for
each path under load;
[docs/evidence/performance.md](../../docs/evidence/performance.md#profiles) has the conclusions. A call into C, such
as the `write` of a response, counts for the calling line. Figures are percent of the samples. CPU is that of all
threads of the service per response, system calls included, without PostgreSQL.

{files}

Measured {taken} on {processor}, {kernel}.

## Most frequent lines
{lines}
"""

Load = Callable[[], int]
"""Sends requests for about a second; returns the number of responses."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One path: µs of CPU per response, and the number of samples by file and by line."""

    cpu: float
    files: Counter[str]
    lines: Counter[str]

    def share(self, file: str) -> float:
        """Return percent of the samples."""
        return 100 * self.files[file] / self.files.total()


def main() -> int:
    """Profile all paths and write the page."""
    prepare()
    systems.require("wrk")
    with scratch() as folder, ExitStack() as stack:
        profiles = {
            name: _profile(server, load, folder / "stacks") for name, (server, load) in _paths(folder, stack).items()
        }
    path = RESULTS / "profile.md"
    path.write_text(page(profiles))
    print(f"results: {path}")
    return 0


def _paths(folder: Path, stack: ExitStack) -> dict[str, tuple[Server, Load]]:
    """Reads have their own server, whose list does not change."""
    names = ("reads", "writes", "watched")
    reads, writes, watched = (stack.enter_context(systems.service(folder / name)) for name in names)
    database = stack.enter_context(systems.postgres())
    on_postgres = stack.enter_context(
        systems.service(folder / "postgres", {systems.DATABASE: database.create("profile")})
    )
    systems.block(reads, 10)
    url, tag = f"{reads.url}/blocklist", fetch(reads.port, "/blocklist")[1]["etag"]
    return {
        "GET": (reads, lambda: wrk(url).responses),
        "304": (reads, lambda: wrk(url, headers={"If-None-Match": tag}).responses),
        "PUT": (writes, partial(_writes, writes, 1)),
        "PUT, 64 writers": (writes, partial(_writes, writes, 64)),
        "PUT, 64 writers, PostgreSQL": (on_postgres, partial(_writes, on_postgres, 64)),
        f"PUT, {WATCHERS:,} watchers": (watched, stack.enter_context(_changes(watched))),
    }


def _writes(server: Server, connections: int) -> int:
    url = f"{server.url}/blocklist/nodes/worker-@"
    return wrk_write(url, method="PUT", body=BODY, connections=connections).responses


@contextmanager
def _changes(server: Server) -> Iterator[Load]:
    """Make one change after the other, each once all watchers have the previous one."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        request = put("/blocklist/nodes/@", CHANGE)
        watched = runner.run(broadcast(server, path="/blocklist/watch", watchers=WATCHERS, request=request))

        def change() -> int:
            runner.run(watched.change())
            return 1

        yield change
        watched.close()


def _profile(server: Server, load: Load, stacks: Path) -> Profile:
    """Raises RuntimeError if py-spy may not sample the service."""
    load()
    before, responses = cpu_seconds(server.pid), 0
    spy = subprocess.Popen(_spy(server, stacks), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while spy.poll() is None:
        responses += load()
    if spy.returncode:
        raise RuntimeError(f"py-spy failed; sampling another process needs root: {spy.communicate()[1]}")
    cpu = (cpu_seconds(server.pid) - before) / responses * 1e6
    return count_samples(stacks.read_text().splitlines(), cpu)


def _spy(server: Server, stacks: Path) -> list[str]:
    command = [str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(server.pid), "--gil"]
    return [*command, "--rate", str(RATE), "--duration", str(SECONDS), "--format", "raw", "--output", str(stacks)]


def count_samples(stacks: Iterable[str], cpu: float) -> Profile:
    """Count py-spy's raw output: each line has the frames, outermost first, and the number of samples."""
    files, lines = Counter[str](), Counter[str]()
    for stack in stacks:
        frames, _, times = stack.rpartition(" ")
        frame = FRAME.fullmatch(frames.rpartition(";")[2])
        file = frame["file"] if frame else frames
        files[_group(file)] += int(times)
        if frame and file != LOOP:
            lines[f"`{file}`, line {frame['line']}, in `{frame['function']}`"] += int(times)
    return Profile(cpu=cpu, files=files, lines=lines)


def _group(file: str) -> str:
    """Files of this project count one by one, other packages as a whole."""
    if file == LOOP:
        return "uvloop"
    if file.startswith("<"):
        return "generated (named tuples)"
    top = file.partition("/")[0]
    return file if top in {"app", "blocklist"} else top


def page(profiles: Mapping[str, Profile]) -> str:
    """Return the Markdown page: files by paths, and the lines of each path."""
    about = machine()
    return PAGE.format(
        rate=RATE, seconds=SECONDS, files=_table(profiles), lines="\n".join(_lines(profiles)),
        taken=about["taken"], processor=about["processor"], kernel=about["kernel"],
    )  # fmt: skip


def _table(profiles: Mapping[str, Profile]) -> str:
    """Files by share, descending; small ones are summed up in one row."""
    files = {file for profile in profiles.values() for file in profile.files}
    most = {file: max(profile.share(file) for profile in profiles.values()) for file in files}
    named = sorted((file for file in files if most[file] >= MIN_SHARE), key=lambda file: (-most[file], file))
    rows = [[file, *(f"{profile.share(file):.0f}" for profile in profiles.values())] for file in named]
    others = [f"{100 - sum(map(profile.share, named)):.0f}" for profile in profiles.values()]
    cpu = [f"{profile.cpu:.0f}" for profile in profiles.values()]
    head = ["", *profiles]
    return "\n".join(
        map(_row, [head, ["---", *["--:"] * len(profiles)], *rows, ["others", *others], ["µs of CPU", *cpu]])
    )


def _lines(profiles: Mapping[str, Profile]) -> Iterator[str]:
    for name, profile in profiles.items():
        yield f"\n{name}:\n"
        for line, times in profile.lines.most_common(LINES):
            yield f"- {100 * times / profile.files.total():.0f} %: {line}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
