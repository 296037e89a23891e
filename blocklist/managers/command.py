"""Run a command of the site: bounded in time and in what it may say."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Final

from blocklist.managers.plan import ManagerError

DEFAULT_MAX_OUTPUT: Final = 64 * 1024
"""Bytes that are kept of each output, unless more is asked for; the rest is read and dropped."""
_MAX_QUOTED: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOutput:
    """What a command wrote until it ended well; `whole` is false where the end of stdout was dropped."""

    stdout: str
    stderr: str
    complete: bool


def run(
    command: Sequence[str], *, timeout: float, stdin: bytes = b"", max_output: int = DEFAULT_MAX_OUTPUT
) -> CommandOutput:
    """Run it to its end, in a process group of its own, and return what it wrote.

    `timeout` is in seconds; past it the whole group is killed. Raises ManagerError, with a sentence and what the
    command said, if it is not there, takes too long, or ends with another exit code than 0.
    """
    # A file, not a pipe: a command that does not read its input must not block us.
    with tempfile.TemporaryFile() as input_file:
        input_file.write(stdin)
        input_file.seek(0)
        try:
            process = subprocess.Popen(
                command, stdin=input_file, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise ManagerError(f"{command[0]} cannot be run: {error.strerror or error}.") from error
    with process:
        out, err = _PipeReader(process.stdout, max_output), _PipeReader(process.stderr, DEFAULT_MAX_OUTPUT)
        timed_out = _kill_on_timeout(process, timeout)
        output = CommandOutput(stdout=out.text(), stderr=err.text(), complete=out.complete)
    if timed_out:
        raise ManagerError(
            f"{_quoted_command(command)} took longer than {timeout:g} s and was ended.{_quoted_output(output)}"
        )
    if process.returncode:
        raise ManagerError(
            f"{_quoted_command(command)} ended with exit code {process.returncode}.{_quoted_output(output)}"
        )
    return output


class _PipeReader:
    """Reads a pipe to its end, so that nobody waits for us, and keeps its first bytes."""

    def __init__(self, pipe: IO[bytes] | None, max_bytes: int) -> None:
        self._pipe = pipe
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self.complete = True
        self._thread = threading.Thread(target=self._run, name="blocklist-command", daemon=True)
        self._thread.start()

    def text(self) -> str:
        # A child that the command left behind may hold the pipe open: its words are not waited for.
        self._thread.join(1)
        return bytes(self._buffer).decode(errors="replace")

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while self._pipe is not None and (chunk := os.read(self._pipe.fileno(), 65536)):
                room = self._max_bytes - len(self._buffer)
                self._buffer += chunk[:room]
                self.complete = self.complete and len(chunk) <= room


def _kill_on_timeout(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Wait for its end; whether it had to be killed."""
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def _quoted_command(command: Sequence[str]) -> str:
    text = shlex.join(command)
    return text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "…"


def _quoted_output(output: CommandOutput) -> str:
    text = " ".join((output.stderr.strip() or output.stdout.strip()).split())
    return f" It said: {text[:_MAX_QUOTED]}" if text else ""
