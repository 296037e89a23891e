"""Output of the demo: live bars on a terminal, else plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

OPEN: Final = "open"
LINE_SECONDS: Final = 2.0
"""Seconds between two plain lines."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """A snapshot of the job: number of completed tasks, and running tasks and state by host."""

    done: int
    total: int
    running: Mapping[str, int]
    state: Mapping[str, str]


class Screen(Protocol):
    """A context manager while scenes are shown; `print` works outside of it too."""

    def print(self, text: str) -> None: ...
    def show(self, scene: Scene) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainScreen:
    """Complete lines, for pipes, files and tests."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._started = time.monotonic()
        self._next = 0.0
        self._state: Mapping[str, str] = {}

    def print(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def show(self, scene: Scene) -> None:
        """Print a line every LINE_SECONDS, and whenever a host is blocked or freed."""
        now = time.monotonic()
        if now < self._next and scene.state == self._state:
            return
        self._next, self._state = now + LINE_SECONDS, scene.state
        hosts = "   ".join(f"{host}: {count}{_suffix(scene.state[host])}" for host, count in scene.running.items())
        self.print(f"  {now - self._started:3.0f} s   {hosts}   done: {scene.done} of {scene.total}")

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class LiveScreen:
    """A bar for each host and one for the job, below the printed text."""

    def __init__(self, out: TextIO, slots: int) -> None:
        self._console = Console(file=out)
        bar = BarColumn(24, complete_style="green", finished_style="green")
        columns = (TextColumn("{task.description}"), bar, TextColumn("{task.fields[note]}"))
        # Other output goes to the log, not through rich.
        self._bars = Progress(*columns, console=self._console, redirect_stdout=False, redirect_stderr=False)
        self._slots = slots
        self._lines: dict[str, TaskID] = {}

    def print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, scene: Scene) -> None:
        for host, count in scene.running.items():
            self._line(host, count, self._slots, f"{count} running  {_markup(scene.state[host])}")
        self._line("job", scene.done, scene.total, f"{scene.done} of {scene.total} tasks done")

    def _line(self, name: str, completed: int, total: int, note: str) -> None:
        if name not in self._lines:
            self._lines[name] = self._bars.add_task(name, total=total, note=note)
        self._bars.update(self._lines[name], completed=completed, note=note)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


def make_screen(out: TextIO, slots: int) -> Screen:
    """Return the screen that suits `out`; `slots` is the number of tasks per host."""
    return LiveScreen(out, slots) if out.isatty() else PlainScreen(out)


@contextmanager
def capturing_output(log: Path) -> Iterator[TextIO]:
    """Yield the standard output, and redirect other output of this process and its children to `log`.

    JVMs write past Python, so the file descriptors are redirected. The end of the log becomes a note of an error.
    """
    sys.stdout.flush()
    saved = [os.dup(1), os.dup(2)]
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        with os.fdopen(os.dup(saved[0]), "w", encoding="utf-8") as out:
            yield out
    except Exception as error:
        error.add_note(log.read_text(encoding="utf-8", errors="replace")[-4000:])
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(saved, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _suffix(state: str) -> str:
    return "" if state == OPEN else f" ({state})"


def _markup(state: str) -> str:
    return f"[dim]{state}[/]" if state == OPEN else f"[bold yellow]{state}[/]"
