"""A shell in which the commands of a page are typed, one after the other, on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.docs.console import Command, Happening, Page
from tests.docs.shown import alike, begins_alike

SECONDS: Final = 60
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_RUN: Final = """
[ -f {state} ] && . {state}
{command}
code=$?
{{ declare -px; printf 'cd %q\\n' "$PWD"; }} > {state}
exit $code
"""


class Shell:
    """Runs commands with bash; what one exports, and its folder, are there for the next.

    `here` is what pages say to what it is on this machine, such as an address; the other way round in what is seen.
    """

    def __init__(self, folder: Path, here: Mapping[str, str], env: Mapping[str, str], *, cwd: Path) -> None:
        self._state = folder / "state.sh"
        self._here = dict(here)
        self._env = {**env, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}
        self._cwd = cwd

    def play(self, page: Page, happenings: Mapping[str, Callable[[], object]]) -> list[str]:
        """Run the page; what was not as it shows, each with its place."""
        wrong: list[str] = []
        for step in page.steps:
            if isinstance(step, Happening):
                if wrong:
                    break  # it may rest on what went wrong
                happenings[step.name]()
            elif said := self.differs(step):
                wrong.append(said)
        return wrong

    def differs(self, command: Command) -> str:
        """Type the command; what is different from what the page shows, empty if nothing is."""
        code, seen = self.run(command.text, until=command.shown if command.interrupted else None)
        expected = (0, 130, -signal.SIGINT) if command.interrupted else (command.code,)
        if code in expected and (begins_alike if command.interrupted else alike)(command.shown, seen):
            return ""
        return f"{command.place}: {command.text}\nexit code {code}; shown:\n{command.shown}\nseen:\n{seen}\n"

    def run(self, text: str, *, until: str | None = None) -> tuple[int, str]:
        """The exit code, and what was seen. With `until` it is interrupted as soon as that was."""
        script = _RUN.format(state=shlex.quote(str(self._state)), command=self._to_here(text))
        ours, theirs = _terminal()
        with subprocess.Popen(
            ["bash", "-c", script],
            env=self._env,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            seen = self._follow(process, ours, until)
            os.close(ours)
            return process.wait(SECONDS), seen

    def _follow(self, process: subprocess.Popen[bytes], terminal: int, until: str | None) -> str:
        raw, deadline = b"", time.monotonic() + SECONDS
        while True:
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
            ready, _, _ = select.select([terminal], [], [], 0.1)
            try:
                data = os.read(terminal, 65536) if ready else b""
            except OSError:
                break  # so Linux says that the other side is gone
            raw += data
            if not data and process.poll() is not None:
                break
            if data and until is not None and begins_alike(until, self.as_on_the_page(raw.decode(errors="replace"))):
                until = None
                os.killpg(process.pid, signal.SIGINT)
        return self.as_on_the_page(raw.decode(errors="replace"))

    def _to_here(self, text: str) -> str:
        for page, here in self._here.items():
            text = text.replace(page, here)
        return text

    def as_on_the_page(self, seen: str) -> str:
        """What was seen, in the names that pages use."""
        text = _COLOUR.sub("", seen)
        for page, here in self._here.items():
            text = text.replace(here, page)
        return text


def _terminal() -> tuple[int, int]:
    """A terminal that leaves line ends as they are."""
    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    return ours, theirs
