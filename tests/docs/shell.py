"""A shell on a terminal that runs the commands of a page one after the other."""

from __future__ import annotations

import math
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

from tests.docs.console import Command, Event, Page
from tests.docs.output_match import matches, starts_with

SECONDS: Final = 120
# Colours, lines that are erased later, by going up again or in place, and whether the cursor is shown.
_NOT_SHOWN: Final = re.compile(
    r"\x1b\[[\d;]*m|[^\n]*\n(?:\x1b\[\?25h)?\r\x1b\[1A\x1b\[2K|[^\n]*\r\x1b\[2K|\x1b\[\?25[lh]"
)
_RUN: Final = """
[ -f {state} ] && . {state}
{command}
code=$?
{{ declare -px; printf 'cd %q\\n' "$PWD"; }} > {state}
exit $code
"""


class Shell:
    """Runs commands with bash; exported variables and the folder are kept for the next command.

    `substitutions` maps texts on the page, such as an address, to those used here; output is mapped back.
    """

    def __init__(self, folder: Path, substitutions: Mapping[str, str], env: Mapping[str, str], *, cwd: Path) -> None:
        self._state = folder / "state.sh"
        self._substitutions = dict(substitutions)
        self._env = {**env, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}
        self._cwd = cwd

    def run_page(self, page: Page, events: Mapping[str, Callable[[], object]]) -> list[str]:
        """Run the page; return each mismatch with its place."""
        mismatches: list[str] = []
        for step in page.steps:
            if isinstance(step, Event):
                if mismatches:
                    break  # it may depend on the step that failed
                events[step.name]()
            elif mismatch := self.mismatch(step):
                mismatches.append(mismatch)
        return mismatches

    def mismatch(self, command: Command) -> str:
        """Run the command; describe how it differs from the page, empty if it does not."""
        code, output = self.run(command.text, until=command.expected if command.interrupt else None)
        expected = (0, 130, -signal.SIGINT) if command.interrupt else (command.code,)
        if code in expected and (starts_with if command.interrupt else matches)(command.expected, output):
            return ""
        return (
            f"{command.place}: {command.text}\nexit code {code}; on the page:\n{command.expected}\nprinted:\n{output}\n"
        )

    def run(self, text: str, *, until: str | None = None) -> tuple[int, str]:
        """Return the exit code and the output. With `until`, interrupt the command after that output."""
        script = _RUN.format(state=shlex.quote(str(self._state)), command=self._from_page(text))
        ours, theirs = _terminal()
        with subprocess.Popen(
            # A program in the background of a script ignores interrupts, and hands that down.
            ["env", "--default-signal=INT", "bash", "-c", script],
            env=self._env,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            output = self._read_output(process, ours, until)
            os.close(ours)
            return process.wait(SECONDS), output

    def _read_output(self, process: subprocess.Popen[bytes], terminal: int, until: str | None) -> str:
        raw, deadline, interrupt_at = b"", time.monotonic() + SECONDS, math.inf
        while True:
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
            elif time.monotonic() >= interrupt_at:
                # Again each second: between fork and exec a shell's child still has the shell's handler, and loses it.
                os.killpg(process.pid, signal.SIGINT)
                interrupt_at += 1
            ready, _, _ = select.select([terminal], [], [], 0.1)
            try:
                data = os.read(terminal, 65536) if ready else b""
            except OSError:
                break  # Linux reports a closed terminal in this way
            raw += data
            if not data and process.poll() is not None:
                break
            if data and until is not None and starts_with(until, self.to_page(raw.decode(errors="replace"))):
                until, interrupt_at = None, time.monotonic()
        return self.to_page(raw.decode(errors="replace"))

    def _from_page(self, text: str) -> str:
        for page, actual in self._substitutions.items():
            text = text.replace(page, actual)
        return text

    def to_page(self, output: str) -> str:
        """The output with the texts that pages use."""
        text = _NOT_SHOWN.sub("", output)
        for page, actual in self._substitutions.items():
            text = text.replace(actual, page)
        return text


def _terminal() -> tuple[int, int]:
    """A terminal that does not translate line ends."""
    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    return ours, theirs
